"""`train.lookahead`: finds the model from which the start of a training is moved away. Pure; `learning/` moves the
start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from pfl_node.model import Model
from pfl_node.steps import Average, Train

LOOKAHEAD = "lookahead"  # in a checkpoint, beside the policy's snapshot
PARTS = ("model", "core", "head")


class Averaged(NamedTuple):
    round: int
    mine: Model  # my model before the average
    answer: Model


class Lookahead:
    """Keeps the averages of this round and the last one, because a policy trains some of them, whole or as the
    core or the head of a model. An average that goes into another one, such as a running mean of the models that
    arrive, is replaced by it: however many arrive in a round, one is kept."""

    def __init__(self, share: float) -> None:
        self.share = share  # multiple of the distance between the average and my model; 0: off
        self._averages: list[Averaged] = []
        self._trained: Model | None = None

    def averaged(self, round: int, step: Average, answer: Model) -> None:
        if not self.share or not step.gated:  # vectors that are no models are not trained
            return
        self._averages = [a for a in self._averages if a.round >= round - 1 and a.answer is not step.mine]
        mine = step.mine if step.own else self._trained_among(step)
        if mine is not None and mine.layout == answer.layout:
            self._averages.append(Averaged(round, mine, answer))

    def trained(self, model: Model) -> None:
        if self.share:
            self._trained = model

    def _trained_among(self, step: Average) -> Model | None:
        """If `mine` has no weight, as in `fedavg`: the model that I trained last, if it is one of the others."""
        known = self._trained
        return known if known is not None and any(known == other for other in step.others) else None

    def past(self, step: Train) -> Model | None:
        """The model to move away from; None: the step does not train an average. A corrected training starts where
        the policy says, because a policy derives the next correction from there."""
        model = step.model
        if step.correction is not None or model.layout.part != "model":
            return None
        found: dict[str, Averaged] = {}
        for average in reversed(self._averages):
            part = average.answer.layout.part
            if part in PARTS and part not in found and average.answer == model.of(part):
                found[part] = average
        if "model" in found:
            return found["model"].mine
        if not found:
            return None
        parts = [found[part].mine if part in found else model.of(part) for part in ("core", "head")]
        return Model(model.layout, np.concatenate([part.vector for part in parts]))

    def dump(self) -> dict[str, Any] | None:
        """The entry for a checkpoint; None: off."""
        rows = [tuple(average) for average in self._averages]
        return {"averages": rows, "trained": self._trained} if self.share else None

    def load(self, row: Mapping[str, Any] | None) -> None:
        if row is not None and self.share:
            self._averages = [Averaged(*average) for average in row["averages"]]
            self._trained = row["trained"]
