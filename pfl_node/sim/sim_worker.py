"""A worker process that runs simulations, one after the other (`sim/worker_process.py`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pfl_node.settings import Settings
from pfl_node.sim.faults import node_ids, parse_faults
from pfl_node.sim.simulate import simulate
from pfl_node.sim.simulation import Progress
from pfl_node.sim.worker_process import JsonOrder, ParentPipe, serve


@dataclass(frozen=True, slots=True)
class RunOrder(JsonOrder):
    """One run of many nodes, simulated or (`lab/swarms/`) real."""

    settings: Settings
    nodes: int
    faults: tuple[str, ...] = ()  # in text form
    out: Path | None = None
    segment: int | None = None  # rounds between resumable snapshots; needs `out`, excludes faults
    processes: int | None = None  # workers of a swarm; None: one per core


def run(order: RunOrder, parent: ParentPipe) -> None:
    import pfl_node.learning.learner  # noqa: F401  loads torch before the run is timed

    def progress(now: Progress) -> None:
        parent.progress(lambda: {"done": now.rounds_done, "total": now.rounds_total})

    faults = parse_faults(order.faults, node_ids(order.nodes))
    summary = simulate(
        order.settings,
        nodes=order.nodes,
        faults=faults,
        out=order.out,
        progress=progress,
        segment=order.segment,
    )
    found = summary.as_dict()
    del found["per_node"]
    parent.send("done", summary=found)


if __name__ == "__main__":
    serve(lambda order, parent: run(RunOrder.load(order), parent))
