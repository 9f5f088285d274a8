"""Runs the cells of an experiment, several at a time, in processes of their own. What is done stays done: a second
call does what is left, and a cell that was broken off goes on from its last segment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pfl_node.lab.experiment import Cell, Experiment
from pfl_node.lab.folder import Folder
from pfl_node.sim.crew import Said, run_all
from pfl_node.sim.worker import Order

SEGMENTS = 20  # a cell is written down about so often
LEAST = 5  # rounds in a segment


@dataclass(frozen=True, slots=True)
class Failure:
    """A cell that could not be run, and why."""

    cell: Cell
    why: str


Watch = Callable[[Cell, Said], None]  # progress (done, total), done (summary), failed (why) or kept


def run(experiment: Experiment, folder: Folder, *, workers: int, watch: Watch) -> list[Failure]:
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
    orders = [Order(cell.settings, cell.nodes, out=folder.place(cell), segment=segment_of(cell)) for cell in todo]
    last = run_all(orders, workers, lambda number, said: watch(todo[number], said)) if orders else []
    said = zip(todo, last, strict=True)
    return [Failure(cell, word["why"]) for cell, word in said if word["event"] == "failed"]


def segment_of(cell: Cell) -> int:
    """Part of the settings' fate: it must not depend on the machine or on the time."""
    rounds = cell.settings.rounds or 1
    return max(LEAST, -(-rounds // SEGMENTS))


def _work(cell: Cell) -> int:
    return (cell.settings.rounds or 1) * cell.nodes
