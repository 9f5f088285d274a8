"""The validation gate: which of the models of an `Average` are not merged, from their losses. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isfinite

from pfl_node.model import Model
from pfl_node.steps import Average
from pfl_node.types import Eval, Part

LEARNT = 0.1  # of an untrained model's loss: who has learnt less than that judges as if it had learnt so much


def completed(step: Average, whole: Model) -> tuple[Model, ...] | None:
    """Mine and the others as models that can be scored: a core or a head alone is put together with the rest of
    my own model. None: of these there is no score."""
    part = step.mine.layout.part
    if part == "model":
        return step.models
    if whole.layout.part != "model" or step.mine.layout != whole.layout.of(part):
        return None
    if part == "core":
        return tuple(core + whole.head for core in step.models)
    return tuple(whole.core + head for head in step.models)


def refused(scores: Sequence[Eval], untrained: float, tolerance: float, part: Part = "model") -> list[int]:
    """The places of the others that would throw away more than this share of what I have learnt. The scores are
    mine and then theirs. A head of mine that is worse than untrained is one that I do not use: my data tell
    nothing about it, and nobody's is refused."""
    mine, *theirs = (score.loss for score in scores)
    if not isfinite(mine) or (part == "head" and mine > untrained):
        return []
    most = mine + tolerance * max(untrained - mine, LEARNT * untrained)
    return [i for i, loss in enumerate(theirs) if not loss <= most]


def without(step: Average, places: Sequence[int]) -> Average:
    """The step, less these of the others."""
    gone = frozenset(places)
    kept = [i for i in range(len(step.others)) if i not in gone]
    weights = None if step.weights is None else [step.weights[i] for i in kept]
    return replace(step, others=[step.others[i] for i in kept], weights=weights)
