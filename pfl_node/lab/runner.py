"""Runs the cells of an experiment: several simulations at a time, or swarms of real nodes one after the other.

What is done stays done: a second call does what is left, and a cell that was broken off goes on from its last
segment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pfl_node.lab.experiment import Cell, Experiment
from pfl_node.lab.results_dir import ResultsDir
from pfl_node.lab.swarms import swarm_runner as swarms
from pfl_node.sim import process_pool as simulations
from pfl_node.sim.process_pool import Heard, Said, cores
from pfl_node.sim.sim_worker import WorkerOrder
from pfl_node.swarm.format import quiet

SEGMENTS = 20  # a cell is written down about so often
LEAST = 5  # rounds in a segment


@dataclass(frozen=True, slots=True)
class Failure:
    """A cell that could not be run, and why."""

    cell: Cell
    why: str


Watch = Callable[[Cell, Said], None]  # progress (done, total), done (summary), failed (why) or kept


def run(experiment: Experiment, folder: ResultsDir, *, workers: int | None, watch: Watch) -> list[Failure]:
    """Everything that is left to do. The longest cells come first, so that no core idles at the end."""
    folder.prepare(experiment)
    todo = []
    for cell in experiment.cells:
        if folder.is_done(cell):
            watch(cell, {"event": "kept"})
        else:
            todo.append(cell)
    todo.sort(key=_work, reverse=True)
    for cell in todo:
        folder.begin(cell)
    how = _in_swarms if experiment.backend == "swarm" else _in_simulations
    last = how(todo, folder, workers, lambda number, said: watch(todo[number], said)) if todo else []
    said = zip(todo, last, strict=True)
    return [Failure(cell, word["why"]) for cell, word in said if word["event"] == "failed"]


def _in_simulations(cells: Sequence[Cell], folder: ResultsDir, workers: int | None, heard: Heard) -> list[Said]:
    """So many at a time."""
    orders = [WorkerOrder(c.settings, c.nodes, out=folder.place(c), segment=segment_of(c)) for c in cells]
    return simulations.run_all(orders, workers or cores(), heard)


def _in_swarms(cells: Sequence[Cell], folder: ResultsDir, workers: int | None, heard: Heard) -> list[Said]:
    """One at a time, in so many processes."""
    told = [cell.settings.model_copy(update={"log": quiet(cell.settings)}) for cell in cells]
    orders = [
        swarms.SwarmOrder(settings, cell.nodes, workers, folder.place(cell), segment_of(cell))
        for cell, settings in zip(cells, told, strict=True)
    ]
    return swarms.run_all(orders, heard)


def segment_of(cell: Cell) -> int:
    """Part of the settings' fate: it must not depend on the machine or on the time."""
    rounds = cell.settings.rounds or 1
    return max(LEAST, -(-rounds // SEGMENTS))


def _work(cell: Cell) -> int:
    return (cell.settings.rounds or 1) * cell.nodes
