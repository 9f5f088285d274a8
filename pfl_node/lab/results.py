"""The results of an experiment, read from its directory: measures of cells and their estimates over the seeds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev
from typing import Any

from pfl_node.errors import StoreError
from pfl_node.lab.experiment import Cell, Claim, Experiment
from pfl_node.lab.measures import MEASURES, ROUNDS_TO, SPEED_UP, CellResult
from pfl_node.lab.results_dir import ResultsDir
from pfl_node.types import ACCURACY, Headline

# Student's t for 95 % and 1, 2, … degrees of freedom.
T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


def t95(degrees: int) -> float:
    """Student's t. From 10 degrees of freedom on it is computed by Abramowitz and Stegun 26.7.5, within 0.0005."""
    if degrees <= len(T95):
        return T95[degrees - 1]
    z, d = 1.959964, float(degrees)
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + (z**3 + z) / (4 * d) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * d**2) + third / d**3


@dataclass(frozen=True, slots=True)
class Estimate:
    """A measure over the seeds that have it."""

    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Estimate | None:
        known = tuple(value for value in values if value is not None)
        return cls(known) if known else None

    @property
    def low(self) -> float:
        return min(self.values)

    @property
    def high(self) -> float:
        return max(self.values)

    @property
    def mean(self) -> float:
        return fmean(self.values)

    @property
    def half_width(self) -> float | None:
        """Half of the 95 % confidence interval of the mean; None: there is only one seed."""
        n = len(self.values)
        if n < 2:
            return None
        return t95(n - 1) * stdev(self.values) / sqrt(n)


@dataclass(frozen=True, slots=True)
class ClaimVerdict:
    """Whether a claim of the paper holds for the mean over the seeds."""

    claim: Claim
    point: str
    estimate: Estimate | None  # higher - lower, seed by seed; None: no seed has both
    at_least: bool = False  # the higher run never reached the target, so the true difference is larger
    at_most: bool = False  # the lower run never reached it, so the true difference is smaller
    seeds: tuple[int, ...] = ()  # seeds that have both, in order

    @property
    def difference(self) -> float | None:
        return None if self.estimate is None else self.estimate.mean

    @property
    def holds(self) -> bool:
        return self.difference is not None and not self.at_most and self.claim.met_by(self.difference)

    @property
    def holding(self) -> int:
        """The number of seeds for which it holds."""
        return sum(map(self.claim.met_by, self.estimate.values)) if self.estimate else 0


@dataclass(frozen=True)
class Results:
    experiment: Experiment
    found: Mapping[Cell, CellResult]

    @property
    def headline(self) -> Headline:
        """The figure by which the task compares models."""
        headline = next((f.summary["headline"] for f in self.found.values() if "headline" in f.summary), None)
        return Headline(**headline) if headline else ACCURACY

    def cells(self, run: str, point: str) -> list[Cell]:
        return [c for c in self.experiment.cells if (c.run, c.point) == (run, point) and c in self.found]

    def founds(self, run: str, point: str) -> list[CellResult]:
        return [self.found[cell] for cell in self.cells(run, point)]

    def estimate(self, run: str, point: str, metric: str) -> Estimate | None:
        return Estimate.of(self.by_seed(run, point, metric).values())

    def by_seed(self, run: str, point: str, metric: str) -> dict[int, float]:
        values = {cell.seed: self.value(cell, metric) for cell in self.cells(run, point)}
        return {seed: value for seed, value in values.items() if value is not None}

    def value(self, cell: Cell, metric: str) -> float | None:
        return self._speed_up(cell) if metric == SPEED_UP else MEASURES[metric].of(self.found[cell])

    def _speed_up(self, cell: Cell) -> float | None:
        """The baseline's rounds to the target, divided by this run's."""
        base = self.by_seed(self.experiment.baselines.get(cell.run, ""), cell.point, "rounds_to_target")
        own = MEASURES["rounds_to_target"].of(self.found[cell])
        return base[cell.seed] / own if own is not None and cell.seed in base else None

    def figure(self, run: str, point: str, metric: str) -> float | None:
        """The paper's figure."""
        wanted = (run, point, metric)
        return next((f.value for f in self.experiment.figures if (f.run, f.point, f.metric) == wanted), None)

    def verdicts(self) -> Iterator[ClaimVerdict]:
        for claim in self.experiment.claims:
            for point in self.experiment.points:
                if claim.point in (None, point):
                    yield self._verdict(claim, point)

    def _verdict(self, claim: Claim, point: str) -> ClaimVerdict:
        """Of a seed with which neither run reached the target, the order is unknown."""
        high, low = (self.by_seed(run, point, claim.metric) for run in (claim.higher, claim.lower))
        above, below = (self._beyond(run, point, claim.metric) for run in (claim.higher, claim.lower))
        at_least, at_most = bool(above.keys() & low.keys()), bool(below.keys() & high.keys())
        pairs = [(high, low), (above, low), (high, below)]
        gaps = dict(sorted((s, one[s] - other[s]) for one, other in pairs for s in one.keys() & other.keys()))
        return ClaimVerdict(claim, point, Estimate.of(gaps.values()), at_least, at_most, tuple(gaps))

    def _beyond(self, run: str, point: str, metric: str) -> dict[int, float]:
        """Lower bounds for the seeds that never reached the target: all that the run took."""
        never = [c for c in self.cells(run, point) if MEASURES[metric].of(self.found[c]) is None]
        if metric == "megabytes_to_target":
            return {c.seed: self.found[c].summary["bytes_sent"] / 1e6 for c in never}
        if metric == "rounds_to_target" or ROUNDS_TO.fullmatch(metric):
            return {c.seed: float(c.settings.rounds or 0) for c in never}
        return {}


def read(experiment: Experiment, folder: ResultsDir) -> Results:
    done = [cell for cell in experiment.cells if folder.is_done(cell)]
    return Results(experiment, {cell: _found(experiment, folder, cell) for cell in done})


def _found(experiment: Experiment, folder: ResultsDir, cell: Cell) -> CellResult:
    try:
        found = CellResult(folder.summary(cell), series(folder, cell), experiment.target)
        for metric in experiment.metrics:
            MEASURES[metric].of(found)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        why = f"no {error}" if isinstance(error, KeyError) else getattr(error, "strerror", None) or error
        raise StoreError(
            f"{folder.place(cell)} is damaged ({why}): delete it and run the experiment again"
        ) from error
    return found


def series(folder: ResultsDir, cell: Cell) -> dict[int, dict[str, dict[str, Any]]]:
    rounds: dict[int, dict[str, dict[str, Any]]] = {}
    for row in folder.rows(cell):
        if row["event"] == "round":
            rounds.setdefault(row["round"], {})[row["node"]] = row
    return rounds
