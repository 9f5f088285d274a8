"""The learning rate over the rounds of a run, as a factor on `train.lr`. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Shape = Literal["constant", "cosine", "step"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Times are rounds and may be fractions: a batch in the middle of round 3 is at 3.5."""

    shape: Shape = "constant"
    rounds: int | None = None  # length of a cosine schedule
    warmup: float = 0.0  # rounds with a rising rate
    every: int = 10  # step: rounds between two reductions
    factor: float = 0.1  # step: factor of each reduction; cosine: factor in the last round

    def at(self, begin: float, end: float) -> float:
        """The factor for a batch that takes from `begin` to `end`."""
        if end <= self.warmup:
            return end / self.warmup
        if self.shape == "step":
            return float(self.factor ** (begin // self.every))
        if self.shape == "constant" or self.rounds is None:
            return 1.0
        length = max(self.rounds - self.warmup, 1e-9)
        done = min(max((begin - self.warmup) / length, 0.0), 1.0)
        return self.factor + (1 - self.factor) * (1 + math.cos(math.pi * done)) / 2
