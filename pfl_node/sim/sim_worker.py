"""A simulation as a job (`sim/run_jobs.py`), or as a worker process (`sim/worker_process.py`)."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pfl_node.settings import Settings
from pfl_node.sim.faults import node_ids, parse_faults
from pfl_node.sim.run_jobs import OnProgress
from pfl_node.sim.simulate import simulate
from pfl_node.sim.simulation import Progress
from pfl_node.sim.worker_process import JsonOrder, ParentPipe, serve_once


@dataclass(frozen=True, slots=True)
class RunOrder(JsonOrder):
    """One run of many nodes, simulated or (`lab/swarms/`) real."""

    settings: Settings
    nodes: int
    faults: tuple[str, ...] = ()  # faults in text form
    out: Path | None = None
    segment: int | None = None  # rounds between two snapshots; needs `out`, excludes faults
    processes: int | None = None  # workers of a swarm; None: one per core


def run(line: str, on_progress: OnProgress) -> dict[str, Any]:
    return run_order(RunOrder.load(line), on_progress)


def run_order(order: RunOrder, on_progress: OnProgress, *, code: str = "") -> dict[str, Any]:
    """The summary, without the nodes. A run is only resumed by the same `code`."""
    import pfl_node.learning.learner  # noqa: F401  loads torch before the run is timed

    def progress(now: Progress) -> None:
        on_progress(lambda: {"done": now.rounds_done, "total": now.rounds_total})

    faults = parse_faults(order.faults, node_ids(order.nodes))
    summary = simulate(
        order.settings,
        nodes=order.nodes,
        faults=faults,
        out=order.out,
        progress=progress,
        segment=order.segment,
        code=code,
    )
    found = summary.as_dict()
    del found["per_node"]
    return found


def _serve(line: str, parent: ParentPipe) -> None:
    parent.send("done", summary=run(line, parent.progress))


if __name__ == "__main__":
    sys.exit(serve_once(_serve))
