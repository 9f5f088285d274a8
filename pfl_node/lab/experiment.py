"""What an experiment is: runs to compare, at some scale, over seeds, beside the figures of a paper. Pure data.

Where it comes from (a TOML file) is `spec.py`'s business, how it is run `runner.py`'s, what it shows `report/`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from pfl_node.settings import Settings

Scale = Literal["quick", "paper"]
Backend = Literal["sim", "swarm"]  # the simulator, or real nodes on this machine


@dataclass(frozen=True, slots=True, eq=False)
class Cell:
    """One run with one seed: what has a folder of its own."""

    run: str  # the label of its row, such as "FACADE"
    point: str  # where in the sweep, such as "alpha = 0.1"; empty: there is no sweep
    seed: int
    nodes: int
    settings: Settings  # whole: policy, task, rounds, seed
    folder: str  # relative to the result's: "facade/alpha-0.1/seed-0"
    backend: Backend = "sim"


@dataclass(frozen=True, slots=True)
class PaperFigure:
    """What the paper says."""

    run: str
    point: str
    metric: str  # a name of `sim/outcome.py`
    value: float  # in the metric's own unit: accuracies between 0 and 1


@dataclass(frozen=True, slots=True)
class Claim:
    """An order that the paper claims and that must show: higher - lower >= by, as means over the seeds."""

    metric: str
    higher: str  # a run's label
    lower: str
    by: float = 0.0
    point: str | None = None  # None: at every point of the sweep


@dataclass(frozen=True, slots=True)
class Experiment:
    """A spec at one scale."""

    name: str
    title: str
    paper: str  # the source: author, year, table or figure
    about: str
    scale: Scale
    seeds: tuple[int, ...]
    cells: tuple[Cell, ...]
    metrics: tuple[str, ...]  # the columns of its table, in order
    target: float | None = None  # an accuracy, for rounds_to_target
    plots: tuple[str, ...] = ()
    figures: tuple[PaperFigure, ...] = ()
    claims: tuple[Claim, ...] = ()
    clusters: Mapping[int, str] = field(default_factory=dict)  # words for them: {0: "majority", 1: "minority"}
    text: str = ""  # the TOML it came from, which is kept beside the results

    @property
    def backend(self) -> Backend:
        """The same for all cells."""
        return self.cells[0].backend if self.cells else "sim"

    def on(self, backend: Backend) -> Experiment:
        return replace(self, cells=tuple(replace(cell, backend=backend) for cell in self.cells))

    @property
    def runs(self) -> tuple[str, ...]:
        """The labels, in the order of the spec."""
        return tuple(dict.fromkeys(cell.run for cell in self.cells))

    @property
    def points(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(cell.point for cell in self.cells))
