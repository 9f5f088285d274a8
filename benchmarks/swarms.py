"""Runs real swarms for the benchmarks and measures the processes from outside."""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from pfl_node.ops.loop import run_loop
from pfl_node.settings import Settings
from pfl_node.swarm.supervisor import Swarm
from pfl_node.swarm.swarm_outcome import SwarmOutcome

LENET = f"{Path(__file__).parent / 'tasks.py'}:lenet"


@dataclass
class Measured:
    outcome: SwarmOutcome
    results: list[dict[str, Any]]
    cpu: float  # seconds of the workers after their imports, and of the parent
    imported: float = 0.0  # seconds until the last worker had imported torch
    ready: float = 0.0  # seconds from then until the last node had seen all others
    pss: float = 0.0  # bytes of all processes when all nodes were ready

    @property
    def node_rounds(self) -> int:
        return sum(n.rounds for n in self.outcome.nodes)

    def work(self, kind: str) -> int:
        return sum(int(r.get("work", {}).get(kind, 0)) for r in self.results)


def run(nodes: int, *, workers: int = 2, **settings: Any) -> Measured:
    with tempfile.TemporaryDirectory(prefix="pfl-bench-") as folder:
        quiet = {"log": {"level": "warning"}, **settings}
        return run_loop(_run(Settings.model_validate(quiet), nodes, workers, Path(folder)))


async def _run(settings: Settings, nodes: int, workers: int, out: Path) -> Measured:
    swarm = Swarm(settings, nodes=nodes, workers=workers, out=out)
    began, cpu = time.monotonic(), time.process_time()
    marks = {"imported": 0.0, "started": 0.0}
    started: set[int] = set()
    pss = 0.0

    def hear(said: dict[str, Any]) -> None:
        nonlocal pss
        if said["event"] not in marks:
            return
        marks[said["event"]] = time.monotonic() - began
        if said["event"] == "started":
            started.add(said["index"])
            if len(started) == nodes:
                pss = pss_of([*swarm.pids, os.getpid()])

    swarm.on_event = hear
    await swarm.run()
    outcome = SwarmOutcome.of(swarm, seconds=time.monotonic() - began)
    return Measured(
        outcome=outcome,
        results=[slot.result or {} for slot in swarm.slots],
        cpu=swarm.cpu + time.process_time() - cpu,
        imported=marks["imported"],
        ready=marks["started"] - marks["imported"],
        pss=pss,
    )


def pss_of(pids: list[int]) -> float:
    return float(sum(psutil.Process(p).memory_full_info().pss for p in pids))
