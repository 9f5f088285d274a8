"""A process that runs one whole swarm for a Python program, whose own event loop and signals stay untouched."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

from rich.console import Console

from pfl_node.settings import Settings
from pfl_node.sim.worker_process import JsonOrder, ParentPipe, serve_once
from pfl_node.swarm.launch import Run


@dataclass(frozen=True, slots=True)
class SwarmOrder(JsonOrder):
    settings: Settings
    nodes: int
    workers: int | None
    out: Path


def run(line: str, parent: ParentPipe) -> None:
    order = SwarmOrder.load(line)
    Thread(target=_stop_with, args=(parent,), daemon=True).start()
    with Path(os.devnull).open("w") as nowhere:
        console = Console(file=nowhere)
        swarm = Run(order.settings, nodes=order.nodes, workers=order.workers, out=order.out)
        report = swarm.start(console, live=False)
    report.write(order.out)
    parent.send("done")


def _stop_with(parent: ParentPipe) -> None:
    """The first end of the pipe stops the swarm, as a signal would."""
    while parent.order() is not None:
        pass
    os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    sys.exit(serve_once(run))
