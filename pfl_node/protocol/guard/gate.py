"""The validation gate: it decides by their losses which models of an `Average` are not merged. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isfinite

from pfl_node.model import Model
from pfl_node.steps import Average
from pfl_node.types import Eval, Part

LEARNT = 0.1  # smallest assumed progress, as a share of an untrained model's loss


def completed(step: Average, whole: Model) -> tuple[Model, ...] | None:
    """My model and the others as whole models: a core, a head or a partial model is completed with my numbers.
    None: they cannot be scored."""
    part, models = step.mine.layout.part, (step.mine, *(m.over(step.mine) for m in step.others))
    if part == "model":
        return models
    if whole.layout.part != "model" or step.mine.layout != whole.layout.of(part):
        return None
    if part == "core":
        return tuple(core + whole.head for core in models)
    return tuple(whole.core + head for head in models)


def refused(scores: Sequence[Eval], untrained: float, tolerance: float, part: Part = "model") -> list[int]:
    """Indices of the others that would undo more than this share of my progress. `scores` are mine, then theirs.
    If my own head is worse than an untrained one, I do not use it, so my data cannot judge heads and none is
    refused."""
    mine, *theirs = (score.loss for score in scores)
    if not isfinite(mine) or (part == "head" and mine > untrained):
        return []
    most = mine + tolerance * max(untrained - mine, LEARNT * untrained)
    return [i for i, loss in enumerate(theirs) if not loss <= most]


def without(step: Average, places: Sequence[int]) -> Average:
    gone = frozenset(places)
    kept = [i for i in range(len(step.others)) if i not in gone]
    weights = None if step.weights is None else [step.weights[i] for i in kept]
    return replace(step, others=[step.others[i] for i in kept], weights=weights)
