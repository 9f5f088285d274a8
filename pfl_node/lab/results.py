"""What an experiment found, read from its folder: the measures of every cell, and their means over the seeds.
Knows nothing of how it is shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev
from typing import Any

from pfl_node.lab.experiment import Cell, Claim, Experiment
from pfl_node.lab.folder import Folder
from pfl_node.lab.measures import MEASURES, Found

# Student's t for 95 % and n - 1 degrees of freedom, n = 2, 3, …; beyond, the normal's.
T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A measure over the seeds that have it."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return fmean(self.values)

    @property
    def half_width(self) -> float | None:
        """Of the 95 % confidence interval of the mean; None: one seed tells nothing about chance."""
        n = len(self.values)
        if n < 2:
            return None
        t = T95[n - 2] if n - 2 < len(T95) else 1.96
        return t * stdev(self.values) / sqrt(n)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A claim of the paper beside what was found."""

    claim: Claim
    point: str
    difference: float | None  # higher - lower; None: one of them was not measured

    @property
    def holds(self) -> bool:
        return self.difference is not None and self.difference >= self.claim.by


@dataclass(frozen=True)
class Results:
    """Those cells that are done."""

    experiment: Experiment
    found: Mapping[Cell, Found]

    def cells(self, run: str, point: str) -> list[Cell]:
        return [c for c in self.experiment.cells if (c.run, c.point) == (run, point) and c in self.found]

    def estimate(self, run: str, point: str, metric: str) -> Estimate | None:
        values = [MEASURES[metric].of(self.found[cell]) for cell in self.cells(run, point)]
        known = tuple(v for v in values if v is not None)
        return Estimate(known) if known else None

    def figure(self, run: str, point: str, metric: str) -> float | None:
        """The paper's."""
        wanted = (run, point, metric)
        return next((f.value for f in self.experiment.figures if (f.run, f.point, f.metric) == wanted), None)

    def verdicts(self) -> Iterator[Verdict]:
        for claim in self.experiment.claims:
            for point in self.experiment.points:
                if claim.point in (None, point):
                    high = self.estimate(claim.higher, point, claim.metric)
                    low = self.estimate(claim.lower, point, claim.metric)
                    yield Verdict(claim, point, high.mean - low.mean if high and low else None)


def read(experiment: Experiment, folder: Folder) -> Results:
    done = [cell for cell in experiment.cells if folder.is_done(cell)]
    return Results(experiment, {c: Found(folder.summary(c), series(folder, c), experiment.target) for c in done})


def series(folder: Folder, cell: Cell) -> dict[int, dict[str, dict[str, Any]]]:
    """Round -> node -> what it told of the round."""
    rounds: dict[int, dict[str, dict[str, Any]]] = {}
    for row in folder.rows(cell):
        if row["event"] == "round":
            rounds.setdefault(row["round"], {})[row["node"]] = row
    return rounds
