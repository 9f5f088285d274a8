"""Early stopping for the gossip and pull policies, based on a node's own validation data."""

from __future__ import annotations

from math import isnan
from statistics import fmean
from typing import Any, ClassVar

from pydantic import Field

from pfl_node.model import Model
from pfl_node.policies.base import Policy, PolicyConfig
from pfl_node.steps import Record, Score
from pfl_node.types import Part


class EarlyStopping(Policy):
    """Stops early (Karlsson & Onoszko 2021, section 3.4)."""

    class Config(PolicyConfig):
        patience: int | None = Field(
            None,
            ge=1,
            description="rounds without a better validation accuracy before a node stops; none: never",
        )
        window: int = Field(5, ge=1, description="rounds over which the validation accuracy is averaged")

    keeps: ClassVar[tuple[str, ...]] = ("recent", "best", "last")
    serves: ClassVar[tuple[Part, ...]] = ()
    asks = False

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.recent: list[float] = []  # validation accuracies of the window
        self.best: tuple[float, int, Model] | None = None  # the highest average, its round and model
        self.last: int | None = None  # the round in which I stopped

    async def check_stop(self) -> None:
        """After a round's training, before its Report: decide whether to stop; if so, restore the best model."""
        # paper: its code always tests the best model; here: only if a node stops, because the text says so
        if self.cfg.patience is None or not self.counts_for_stopping:
            return
        (score,) = await Score([self.model], split="val")
        # paper: accuracy; here: the task's best metric, or the loss if labels are not classes
        good = score.quality
        if isnan(good):
            return
        self.recent = [*self.recent, good][-self.cfg.window :]
        average = fmean(self.recent)
        if self.best is None or average > self.best[0]:
            self.best = (average, self.round, self.model)
        elif self.round - self.best[1] >= self.cfg.patience:
            self.last, self.model = self.round, self.best[2]
            await Record("stopped", {"round": self.round, "back_to": self.best[1]})

    @property
    def counts_for_stopping(self) -> bool:
        """Whether the current round counts for early stopping."""
        return True

    @property
    def stopped(self) -> bool:
        return self.last is not None or self.stops_after is not None

    @property
    def more(self) -> bool:
        """The round in which the node stops is still reported."""
        return super().more if self.last is None else self.round <= self.last
