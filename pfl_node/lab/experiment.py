"""An experiment as data: runs to compare at a scale, over seeds, with the figures and claims of a paper.

`spec.py` reads it from TOML, `runner.py` runs it, `report/` shows its results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from pfl_node.errors import ConfigError, nearest
from pfl_node.settings import Settings

Scale = Literal["quick", "paper"]
Backend = Literal["sim", "swarm"]  # simulated, or real nodes on this machine


@dataclass(frozen=True, slots=True, eq=False)
class Cell:
    """One run at one point with one seed. It has its own directory."""

    run: str  # the label of its row, such as "FACADE"
    point: str  # a point of the sweep, such as "alpha = 0.1"; empty: there is no sweep
    seed: int
    nodes: int
    settings: Settings
    folder: str  # relative to the results directory: "facade/alpha-0.1/seed-0"
    backend: Backend = "sim"


@dataclass(frozen=True, slots=True)
class PaperFigure:
    run: str
    point: str
    metric: str  # a name of `measures.MEASURES`
    value: float  # in the metric's own unit: accuracies between 0 and 1


@dataclass(frozen=True, slots=True)
class Claim:
    """A ranking: higher - lower >= by (> 0 without `by`), as means over the seeds."""

    metric: str
    higher: str  # a run's label
    lower: str
    by: float = 0.0
    point: str | None = None  # None: at every point of the sweep
    ours: bool = False  # no paper states it: it is what we expect

    def met_by(self, difference: float) -> bool:
        return difference >= self.by if self.by else difference > 0


@dataclass(frozen=True, slots=True)
class Experiment:
    name: str
    title: str
    paper: str  # author, year, table or figure
    about: str
    scale: Scale
    seeds: tuple[int, ...]
    cells: tuple[Cell, ...]
    metrics: tuple[str, ...]  # the columns of its table, in order
    target: float | None = None  # an accuracy, for rounds_to_target
    baselines: Mapping[str, str] = field(default_factory=dict)  # by run: the baseline of its speed_up
    plots: tuple[str, ...] = ()
    figures: tuple[PaperFigure, ...] = ()
    claims: tuple[Claim, ...] = ()
    clusters: Mapping[int, str] = field(default_factory=dict)  # names: {0: "majority", 1: "minority"}
    text: str = ""  # its TOML
    sweeps: tuple[str, ...] = ()  # sweeps of the command line, as KEY=VALUE,VALUE
    sources: tuple[tuple[str, str], ...] = ()  # policies and tasks: as written in the TOML, and resolved

    @property
    def backend(self) -> Backend:
        return self.cells[0].backend if self.cells else "sim"

    def on(self, backend: Backend) -> Experiment:
        return replace(self, cells=tuple(replace(cell, backend=backend) for cell in self.cells))

    @property
    def runs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(cell.run for cell in self.cells))

    @property
    def points(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(cell.point for cell in self.cells))

    def only(self, names: Sequence[str]) -> Experiment:
        """With the cells of these runs and at these points. No run, or no point, among the names: all of them."""
        for name in names:
            if name not in (*self.runs, *self.points):
                known = filter(None, (*self.runs, *self.points))
                raise ConfigError(f"{self.name} has no run or point {name!r}; {nearest(name, known)}")
        runs, points = (set(names) & set(known) or set(known) for known in (self.runs, self.points))
        return replace(self, cells=tuple(c for c in self.cells if c.run in runs and c.point in points))
