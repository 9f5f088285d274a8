"""Types that every layer shares: peer ids, offers, evaluations. Imports neither torch nor network code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isnan
from typing import TYPE_CHECKING, Any, Literal, NewType

if TYPE_CHECKING:
    from pfl_node.model import Model

PeerId = NewType("PeerId", str)
Part = Literal["model", "core", "head", "predictions"]  # what nodes exchange
Split = Literal["train", "val", "test"]
NOTE = 192  # bytes of a note without its name
MAX_VECTORS = 8  # beside the model of a message
MAX_VECTOR_NAME = 32  # characters


@dataclass(frozen=True, slots=True)
class Eval:
    """Loss (lower is better) and accuracy (higher is better; NaN: labels are not classes) of a model on some data,
    and the task's own metrics."""

    loss: float
    accuracy: float
    samples: int
    metrics: Mapping[str, float] = field(default_factory=dict)  # by name; never sent to peers
    score: float | None = None  # the metric that the task calls best, higher is better; None: it names none

    @property
    def quality(self) -> float:
        """Higher is better: the score, else the accuracy, else the negative loss."""
        if self.score is not None:
            return self.score
        return -self.loss if isnan(self.accuracy) else self.accuracy

    def figures(self, *, classes: bool = False) -> dict[str, float]:
        """By name. The accuracy is left out if it is NaN, unless the labels are `classes`."""
        accuracy = {"accuracy": self.accuracy} if classes or not isnan(self.accuracy) else {}
        return {"loss": self.loss, **accuracy, **self.metrics}


@dataclass(frozen=True, slots=True)
class Headline:
    """The figure by which the models of a task are compared."""

    name: str
    higher: bool  # is better


ACCURACY, LOSS = Headline("accuracy", higher=True), Headline("loss", higher=False)


@dataclass(frozen=True, slots=True)
class Offer:
    """A model received from a peer, with the peer's metadata."""

    sender: PeerId
    model: Model
    round: int | None = None
    tag: int = 0  # metadata of the policy; FACADE: the index of the head
    samples: int = 0  # how many samples the sender trains on
    notes: Mapping[str, float] = field(default_factory=dict)  # small numbers sent with the model
    vectors: Mapping[str, Model] = field(default_factory=dict)  # those that the policy declares in `vectors`

    @property
    def nbytes(self) -> int:
        """In memory."""
        return self.model.nbytes + sum(v.nbytes for v in self.vectors.values()) + weight(self.notes)


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
    vectors: Mapping[str, Part] = field(default_factory=dict)  # those beside the model, in the payload's order
    present: int | None = None  # numbers of a partial model; None: it is complete


def parts_of(vectors: Mapping[str, Model]) -> dict[str, Part]:
    return {name: vector.layout.part for name, vector in vectors.items()}


def expected_vectors(declared: Mapping[str, Part], part: Part) -> Mapping[str, Part]:
    """The vectors that come with this part: all that the policy declares, or none with predictions."""
    return {} if part == "predictions" else declared


def weight(notes: Mapping[str, float]) -> int:
    """Approximate bytes in memory: a small model may come with very many notes."""
    return sum(NOTE + len(name) for name in notes)


@dataclass(frozen=True, slots=True)
class RoundReport:
    """What a node reports about a round, for trackers and for `on_round`."""

    node: str  # its id
    name: str
    event: str  # "round"; "finished" after the last one; "reloaded" when the task was called again
    round: int
    figures: Mapping[str, float]  # the finite numbers: val_loss, test_accuracy, learning_seconds, ...
    data: Mapping[str, Any]  # the whole journal entry
