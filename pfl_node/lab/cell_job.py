"""The cells of an experiment as jobs: simulated, on this machine or on a worker of a cluster that sees the results
directory, or as a swarm of real nodes in a process of its own."""

from __future__ import annotations

import gc
import json
import platform
from dataclasses import dataclass
from threading import Lock
from typing import Any

from pfl_node import __version__
from pfl_node.errors import ConfigError, PflError
from pfl_node.lab.results_dir import SETTINGS, record_environment
from pfl_node.learning.kernels import choose_kernels
from pfl_node.ops.environment import commit, environment
from pfl_node.sim.run_jobs import Measure, OnProgress
from pfl_node.sim.segments import ATTEMPT
from pfl_node.sim.sim_worker import RunOrder, run_order
from pfl_node.sim.worker_process import JsonOrder

_one_at_a_time = Lock()  # a worker of Dask may have several threads; a run needs the process for itself


@dataclass(frozen=True, slots=True)
class CellOrder(JsonOrder):
    run: RunOrder
    code: str  # version and commit that all workers must have


def code() -> str:
    """Version and commit of pfl-node in this process."""
    return " ".join(filter(None, (__version__, commit())))


def _code_and_packages() -> str:
    """Everything that the result of a job depends on, besides the job and the settings."""
    return json.dumps({what: value for what, value in environment().items() if what != "machine"})


def run(line: str, on_progress: OnProgress) -> dict[str, Any]:
    choose_kernels()
    order = CellOrder.load(line)
    place = order.run.out
    assert place is not None
    if code() != order.code:
        raise ConfigError(
            f"{platform.node()} has pfl-node {code()}, but the lab has {order.code}: install the same or, "
            "if its files changed while the lab ran, run the same command again"
        )
    if not (place / SETTINGS).is_file():
        raise ConfigError(
            f"{platform.node()} has no {place}: all workers must share the results directory (--out)"
        )

    def checked(measure: Measure) -> None:
        if not (place / "segments" / ATTEMPT).exists():
            raise PflError(f"{place} was stopped")
        on_progress(measure)

    with _one_at_a_time:
        record_environment(place)
        try:
            return run_order(order.run, checked, code=_code_and_packages())
        finally:
            gc.collect()  # the nodes of a simulation refer to each other, and their data may be gigabytes


def run_swarm(line: str, on_progress: OnProgress) -> dict[str, Any]:
    from pfl_node.lab.swarms.swarm_cell import run_cell  # loads gRPC, which the lab's own process must not

    return run_cell(RunOrder.load(line), on_progress)
