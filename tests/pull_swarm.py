"""A swarm to pull from, for policies driven by hand: who is there, what they serve, what they say of my model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pfl_node.steps import Score
from pfl_node.types import Eval, PeerId
from tests.drive_policy import Hand, offer


def peers(n: int) -> list[PeerId]:
    return [PeerId(f"p{i:03d}") for i in range(n)]


def right(accuracy: float, loss: float = 0.0) -> Eval:
    return Eval(loss=loss, accuracy=accuracy, samples=10)


def among(
    served: Mapping[PeerId, float],
    told: Mapping[PeerId, float] | None = None,
    *,
    also: Sequence[PeerId] = (),
    tags: Mapping[PeerId, int] | None = None,
) -> Hand:
    """Peers that serve these models (all numbers alike) and report these accuracies of mine, and others `also`."""
    hand = Hand(sorted({*served, *also}))
    hand.served = {p: offer(p, value, tag=(tags or {}).get(p, 0)) for p, value in served.items()}
    hand.scores = {p: right(accuracy) for p, accuracy in (told or {}).items()}
    return hand


def validated(hand: Hand, accuracies: Sequence[float]) -> Hand:
    """My validation accuracy is the next of these at each Score on val, and the last from then on."""
    rest = list(accuracies)

    def answer(step: Score) -> tuple[Eval, ...]:
        assert step.split == "val"
        return (right(rest.pop(0) if len(rest) > 1 else rest[0]),)

    hand.answers[Score] = answer
    return hand


def kinds(hand: Hand, *of: type[Any]) -> list[type[Any]]:
    """What was asked, as types; only these, if given."""
    return [type(step) for step in hand.asked if not of or isinstance(step, of)]
