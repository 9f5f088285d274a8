"""The best model of a node by its validation data, and early stopping for every policy (`train.patience`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isnan
from typing import Any

from pfl_node.errors import ConfigError
from pfl_node.model import LocalState, Model
from pfl_node.settings import Settings

BEST = "best"  # in a checkpoint, beside the policy's snapshot


@dataclass(frozen=True, slots=True)
class BestModel:
    quality: float  # higher is better: `Eval.quality` on the validation data
    round: int
    model: Model | None  # None: it is on disk only
    state: LocalState | None = None  # the local state that belongs to the model


class BestTracker:
    """Keeps the best of the evaluated models. Without patience, the model itself is kept only until it is
    written."""

    def __init__(self, patience: int | None, *, written: bool = True) -> None:
        self._patience = patience  # rounds
        self._holds = written or patience is not None  # whether to keep the model itself
        self._seen = 0  # the last evaluated round
        self.best: BestModel | None = None

    def add(self, quality: float, round: int, model: Model, state: LocalState | None) -> bool:
        """Whether this model is the best so far. NaN is never better."""
        self._seen = round
        if isnan(quality) or (self.best is not None and quality <= self.best.quality):
            return False
        kept = state.for_evaluation if state else None
        self.best = BestModel(quality, round, model, kept) if self._holds else BestModel(quality, round, None)
        return True

    def forget_model(self) -> None:
        """The model was written: drop it unless early stopping needs it."""
        if self.best and self._patience is None:
            self.best = BestModel(self.best.quality, self.best.round, None)

    @property
    def exhausted(self) -> bool:
        """Whether early stopping is due."""
        return is_exhausted(self.dump(), self._patience)

    @property
    def final(self) -> BestModel | None:
        """The model to end with; None: the last one."""
        return self.best if self._patience is not None and self.best and self.best.model else None

    def dump(self) -> dict[str, Any] | None:
        """The entry for a checkpoint; with patience it includes the model."""
        if self.best is None:
            return None
        row = {"quality": self.best.quality, "round": self.best.round, "seen": self._seen}
        if self._patience is None:
            return row
        return {**row, "model": self.best.model, "state": self.best.state}

    def load(self, row: Mapping[str, Any] | None) -> None:
        """A checkpoint that was written without patience lacks the model, so early stopping starts over."""
        if row is None or (self._patience is not None and row.get("model") is None):
            return
        self._seen = row["seen"]
        self.best = BestModel(row["quality"], row["round"], row.get("model"), row.get("state"))


def tracker_of(settings: Settings, *, written: bool) -> BestTracker:
    """`written`: whether the store writes models."""
    patience = settings.train.patience
    if patience is not None and "val" not in settings.eval.on:
        raise ConfigError("train.patience uses the validation data: add val to eval.on")
    return BestTracker(patience, written=written)


def is_exhausted(row: Mapping[str, Any] | None, patience: int | None) -> bool:
    """`row` is the entry of a checkpoint."""
    if row is None or patience is None or row.get("model") is None:
        return False
    return bool(row["seen"] - row["round"] >= patience)
