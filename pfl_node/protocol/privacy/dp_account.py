"""The privacy cost of a node's trainings: number of steps, noise and sampling rate. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

Note = Callable[[str, Mapping[str, Any]], None]  # records a disclosure before it happens; raises StoreError
TRAINED = "trained"


def nowhere(event: str, data: Mapping[str, Any]) -> None:
    """Discard the record, if nothing outlives the process."""


class DpStep(NamedTuple):
    """One step of DP-SGD."""

    noise: float  # in units of the clipping norm
    rate: float  # probability that a sample is in the batch


class DpAccount:
    """Only grows. A training is recorded before it begins."""

    def __init__(self, note: Note = nowhere, secret: str = "") -> None:
        self.secret = secret  # part of the noise seeds, whose other parts are public
        self.steps: Counter[DpStep] = Counter()
        self.epsilon = 0.0  # epsilon of all steps; set by the caller, which can compute it
        self.exhausted = False  # the limit is reached and training has stopped
        self.partners: int | None = None  # neighbours whose noise cancels that of the last training
        self._note = note

    def spend(self, step: DpStep, times: int) -> None:
        """Raises StoreError, and then nothing is spent."""
        self._note(TRAINED, {"noise": step.noise, "rate": step.rate, "steps": times})
        self.steps[step] += times

    def facts(self) -> dict[str, float]:
        """Fields for a round's line in the journal."""
        partners = {} if self.partners is None else {"dp_partners": self.partners}
        return {"dp_epsilon": round(self.epsilon, 6), **partners} if self.steps else {}

    def with_more(self, step: DpStep, times: int) -> Counter[DpStep]:
        return self.steps + Counter({step: times})

    def load(self, row: Mapping[str, Any]) -> None:
        self.steps[DpStep(float(row["noise"]), float(row["rate"]))] += int(row["steps"])

    def rows(self) -> list[dict[str, Any]]:
        return [{"noise": s.noise, "rate": s.rate, "steps": n} for s, n in self.steps.items()]
