"""Runs the cells of an experiment as jobs of an executor: several simulations at a time, or one swarm of real
nodes after the other.

Finished cells are kept: a second call runs the others. An interrupted cell resumes from its last state,
with the same result.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from pfl_node.errors import ConfigError
from pfl_node.lab import cell_job
from pfl_node.lab.executors import executor
from pfl_node.lab.experiment import Cell, Experiment
from pfl_node.lab.results_dir import ResultsDir
from pfl_node.lab.resumption import segment_of
from pfl_node.sim.process_executor import ProcessExecutor
from pfl_node.sim.run_jobs import Message, OnMessage, run_all
from pfl_node.sim.segments import ATTEMPT
from pfl_node.sim.sim_worker import RunOrder
from pfl_node.sim.worker_process import cores
from pfl_node.store.atomic import make_directory
from pfl_node.swarm.format import quiet

GRACE = 15.0  # seconds that a process has to end its swarm
ATTEMPTS = 3  # attempts for a simulation whose process dies, as in Dask
PROGRESS = ".progress"  # a directory that exists while the lab runs


@dataclass(frozen=True, slots=True)
class Failure:
    cell: Cell
    why: str


# progress (done, total), lost (why), done (summary), failed (why, mistake) or kept
OnCell = Callable[[Cell, Message], None]


def run(
    experiment: Experiment, folder: ResultsDir, *, workers: int | None, on_cell: OnCell, cluster: str | None = None
) -> list[Failure]:
    """Run the cells that are not done. The longest come first, so that no core idles at the end. `cluster` is the
    address of an executor beyond this machine."""
    if not experiment.cells:
        raise ConfigError(f"{experiment.name} has no run at --scale {experiment.scale}: see `only` and `quick`")
    folder.prepare(experiment)
    todo = []
    for cell in experiment.cells:
        if folder.is_done(cell):
            on_cell(cell, {"event": "kept"})
        else:
            todo.append(cell)
    todo.sort(key=rounds_of, reverse=True)
    try:
        for cell in todo:
            folder.begin(cell)
        make_directory(folder.path / PROGRESS)
        last = _run_cells(todo, folder, workers, cluster, lambda i, message: on_cell(todo[i], message))
    except BaseException:
        folder.replaced.stopped()
        raise
    finally:
        shutil.rmtree(folder.path / PROGRESS, ignore_errors=True)
    folder.replaced.drop()
    ended = zip(todo, last, strict=True)
    return [Failure(cell, message["why"]) for cell, message in ended if message["event"] == "failed"]


def _run_cells(
    cells: Sequence[Cell], folder: ResultsDir, workers: int | None, cluster: str | None, on_message: OnMessage
) -> list[Message]:
    if not cells:
        return []
    orders = [
        RunOrder(c.settings, c.nodes, out=folder.place(c).resolve(), segment=segment_of(c), processes=workers)
        for c in cells
    ]
    scratch = (folder.path / PROGRESS).resolve()
    if cells[0].backend == "swarm":
        return _run_swarms(orders, partial(run_all, scratch=scratch, on_message=on_message))
    at_once = None if cluster else min(workers or cores(), len(cells))
    with executor(cluster, at_once) as pool:
        try:
            jobs = [cell_job.CellOrder(order, cell_job.code()) for order in orders]
            return run_all(cell_job.run, jobs, pool, scratch, on_message, attempts=ATTEMPTS)
        except BaseException:
            for order in orders if cluster else ():
                stop(order)
            raise


def _run_swarms(orders: Sequence[RunOrder], run_jobs: Callable[..., list[Message]]) -> list[Message]:
    """Run one swarm at a time, because each uses all cores."""
    logs = [order.settings.model_copy(update={"log": quiet(order.settings)}) for order in orders]
    orders = [replace(order, settings=s) for order, s in zip(orders, logs, strict=True)]
    with ProcessExecutor(1, reuse=False, grace=GRACE) as pool:
        return run_jobs(cell_job.run_swarm, orders, pool)


def stop(order: RunOrder) -> None:
    """Ask the worker that runs it to stop. A thread of Dask cannot be interrupted."""
    assert order.out is not None
    (order.out / "segments" / ATTEMPT).unlink(missing_ok=True)


def rounds_of(cell: Cell) -> int:
    """The rounds of all nodes together."""
    return (cell.settings.rounds or 1) * cell.nodes
