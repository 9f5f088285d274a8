"""A process that simulates what it is told, one run after the other. Orders come as lines of JSON on stdin, whose
end is the end; what happens goes up as lines of JSON."""

from __future__ import annotations

import errno
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from pfl_node.errors import ConfigError, PflError, TaskError
from pfl_node.plugin import in_a_line, line_of
from pfl_node.settings import Settings
from pfl_node.sim.faults import node_ids, parse_faults
from pfl_node.sim.segments import simulate_in_segments
from pfl_node.sim.simulate import simulate
from pfl_node.sim.simulation import Progress
from pfl_node.sim.summary import Summary

TELL_EVERY = 0.1  # seconds between two words about progress
FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True)
class WorkerOrder:
    """One run. Faults as a user writes them."""

    settings: Settings
    nodes: int
    faults: tuple[str, ...] = ()
    out: Path | None = None
    segment: int | None = None  # rounds after which it can be gone on from; it needs an `out` and knows no faults

    def dump(self) -> str:
        out = None if self.out is None else str(self.out)
        settings = self.settings.model_dump(mode="json")
        return json.dumps(
            {
                "settings": settings,
                "nodes": self.nodes,
                "faults": self.faults,
                "out": out,
                "segment": self.segment,
            }
        )

    @classmethod
    def load(cls, line: str) -> WorkerOrder:
        raw = json.loads(line)
        out = None if raw["out"] is None else Path(raw["out"])
        settings = Settings.model_validate(raw["settings"])
        return cls(settings, raw["nodes"], tuple(raw["faults"]), out, raw["segment"])

    def run(self, progress: Callable[[Progress], None]) -> Summary:
        if self.segment is not None and self.out is not None:
            return simulate_in_segments(
                self.settings, nodes=self.nodes, every=self.segment, out=self.out, progress=progress
            )
        faults = parse_faults(self.faults, node_ids(self.nodes))
        return simulate(self.settings, nodes=self.nodes, faults=faults, out=self.out, progress=progress)


class Voice:
    """The way up. Make it first: from then on stdout is stderr, as a user's task may print."""

    def __init__(self) -> None:
        self._up = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        self._told_at = 0.0

    def tell(self, event: str, **data: Any) -> None:
        self._up.write(json.dumps({"event": event, **data}) + "\n")
        self._up.flush()

    def progress(self, progress: Progress) -> None:
        if (now := time.monotonic()) >= self._told_at + TELL_EVERY:
            self._told_at = now
            self.tell("progress", done=progress.rounds_done, total=progress.rounds_total)


def main() -> None:
    voice = Voice()
    orders: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=listen, args=(orders,), daemon=True).start()
    import pfl_node.learning.learner  # noqa: F401  loads torch, which no run shall pay for

    while True:
        obey(WorkerOrder.load(orders.get()), voice)


def obey(order: WorkerOrder, voice: Voice) -> None:
    try:
        found = order.run(voice.progress).as_dict()
    except Exception as error:  # the next run may be better
        voice.tell("failed", why=reason(error), mistake=isinstance(error, ConfigError | TaskError))
    else:
        del found["per_node"]
        voice.tell("done", summary=found)


def reason(error: Exception) -> str:
    """A failure in one line; a bug of ours shows its traceback besides."""
    if isinstance(error, PflError):
        return " ".join(str(error).split())
    if isinstance(error, OSError) and error.errno in FULL:
        return f"cannot write what it found: {error.strerror}"
    if where := line_of(error):
        return f"your code failed{where}: {in_a_line(error)}"
    traceback.print_exception(error)
    return in_a_line(error)


def listen(orders: SimpleQueue[str]) -> None:
    for line in sys.stdin:
        orders.put(line)
    os._exit(0)  # whatever it is doing: nobody wants to know


if __name__ == "__main__":
    main()
