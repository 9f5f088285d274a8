"""Runs the cells of an experiment: several simulations at a time, or one swarm of real nodes after the other.

Finished cells are kept: a second call runs the others, and an interrupted cell resumes from its last segment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pfl_node.lab.experiment import Backend, Cell, Experiment
from pfl_node.lab.results_dir import ResultsDir
from pfl_node.sim.sim_worker import RunOrder
from pfl_node.sim.worker_process import Message, OnMessage, cores, run_all
from pfl_node.swarm.format import quiet

SWARM_CELL = (
    "pfl_node.lab.swarms.swarm_cell"  # a process of its own: this one must not load gRPC, which forbids fork
)
GRACE = 15.0  # seconds that it has to end its swarm
SEGMENTS = 20  # a cell saves its state about so often
LEAST = 5  # rounds in a segment


@dataclass(frozen=True, slots=True)
class Failure:
    cell: Cell
    why: str


OnCell = Callable[[Cell, Message], None]  # progress (done, total), done (summary), failed (why) or kept


def run(experiment: Experiment, folder: ResultsDir, *, workers: int | None, on_cell: OnCell) -> list[Failure]:
    """Run the cells that are not done. The longest come first, so that no core idles at the end."""
    folder.prepare(experiment)
    todo = []
    for cell in experiment.cells:
        if folder.is_done(cell):
            on_cell(cell, {"event": "kept"})
        else:
            todo.append(cell)
    todo.sort(key=rounds_of, reverse=True)
    for cell in todo:
        folder.begin(cell)
    orders = [RunOrder(c.settings, c.nodes, out=folder.place(c), segment=segment_of(c)) for c in todo]
    last = _run_all(orders, experiment.backend, workers, lambda i, message: on_cell(todo[i], message))
    ended = zip(todo, last, strict=True)
    return [Failure(cell, message["why"]) for cell, message in ended if message["event"] == "failed"]


def _run_all(
    orders: Sequence[RunOrder], backend: Backend, workers: int | None, on_message: OnMessage
) -> list[Message]:
    """Several simulations at a time, or one swarm at a time in `workers` processes."""
    if not orders:
        return []
    if backend == "sim":
        return run_all(orders, workers or cores(), on_message)
    logs = [order.settings.model_copy(update={"log": quiet(order.settings)}) for order in orders]
    orders = [replace(order, settings=s, processes=workers) for order, s in zip(orders, logs, strict=True)]
    return run_all(orders, 1, on_message, SWARM_CELL, reuse=False, grace=GRACE)


def segment_of(cell: Cell) -> int:
    """Rounds. Results depend on it, so it must not depend on the machine or on the time."""
    return max(LEAST, -(-(cell.settings.rounds or 1) // SEGMENTS))


def rounds_of(cell: Cell) -> int:
    """Of all nodes together."""
    return (cell.settings.rounds or 1) * cell.nodes
