"""The words every layer shares: who, what was offered, how good it is. Knows no torch, no network, no clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NewType

if TYPE_CHECKING:
    from pfl_node.model import Model

PeerId = NewType("PeerId", str)
Part = Literal["model", "core", "head", "predictions"]  # what travels
Split = Literal["train", "val", "test"]
NOTE = 192  # bytes of a note besides the letters of its name


@dataclass(frozen=True, slots=True)
class Eval:
    """How a model does on some data. The loss: lower is better; the accuracy: higher is better."""

    loss: float
    accuracy: float
    samples: int


@dataclass(frozen=True, slots=True)
class Offer:
    """A model that came from a peer, with what the peer said about it."""

    sender: PeerId
    model: Model
    round: int | None = None
    tag: int = 0  # what the policy wants to say with it; FACADE: the index of the head
    samples: int = 0  # how many samples the sender trains on
    notes: Mapping[str, float] = field(default_factory=dict)  # small numbers that travel along

    @property
    def nbytes(self) -> int:
        """In memory."""
        return self.model.nbytes + weight(self.notes)


@dataclass(frozen=True, slots=True)
class Envelope:
    """What is said about a model besides its numbers."""

    sender: PeerId
    run: str
    round: int | None = None
    tag: int = 0
    samples: int = 0
    notes: Mapping[str, float] = field(default_factory=dict)
    part: Part = "model"


def weight(notes: Mapping[str, float]) -> int:
    """Bytes in memory, about: a small model may come with very many of them."""
    return sum(NOTE + len(name) for name in notes)
