"""What a node's trainings have spent: how many steps with which noise, at which rate of sampling. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

Note = Callable[[str, Mapping[str, Any]], None]  # writes down what is about to be told; raises StoreError
TRAINED = "trained"


def nowhere(event: str, data: Mapping[str, Any]) -> None:
    """Where what is spent is written when nothing outlives the process."""


class DpStep(NamedTuple):
    """One step of DP-SGD."""

    noise: float  # in units of the clipping norm
    rate: float  # of each sample to be in the batch


class DpAccount:
    """Grows only. What a training will spend is written down before it begins."""

    def __init__(self, note: Note = nowhere, secret: str = "") -> None:
        self.secret = secret  # in the seeds of noise: all other parts of them are known to everybody
        self.steps: Counter[DpStep] = Counter()
        self.epsilon = 0.0  # of all steps; whoever can compute it keeps it up to date
        self.exhausted = False  # the limit is reached: nothing is trained any more
        self._note = note

    def spend(self, step: DpStep, times: int) -> None:
        """Raises StoreError, and nothing is spent then."""
        self._note(TRAINED, {"noise": step.noise, "rate": step.rate, "steps": times})
        self.steps[step] += times

    def facts(self) -> dict[str, float]:
        """What a round's line in the journal says of it."""
        return {"dp_epsilon": round(self.epsilon, 6)} if self.steps else {}

    def with_more(self, step: DpStep, times: int) -> Counter[DpStep]:
        """What there would be."""
        return self.steps + Counter({step: times})

    def load(self, row: Mapping[str, Any]) -> None:
        """A line that `spend` wrote."""
        self.steps[DpStep(float(row["noise"]), float(row["rate"]))] += int(row["steps"])

    def rows(self) -> list[dict[str, Any]]:
        """For `load`."""
        return [{"noise": s.noise, "rate": s.rate, "steps": n} for s, n in self.steps.items()]
