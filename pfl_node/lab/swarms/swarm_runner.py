"""Runs cells as swarms, one after the other: a swarm has the cores to itself.

Above each is a process of its own, as gRPC and fork do not go together. It ends the swarm when this one ends.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pfl_node.settings import Settings
from pfl_node.sim.process_pool import Heard, Said

MODULE = "pfl_node.lab.swarms.swarm_cell"
ENDING = 15.0  # seconds that a process has to end its swarm


@dataclass(frozen=True, slots=True)
class SwarmOrder:
    """One cell."""

    settings: Settings
    nodes: int
    processes: int | None  # that host them; None: one per core
    out: Path  # the cell's folder
    every: int  # rounds after which it can be gone on from

    def dump(self) -> str:
        settings = self.settings.model_dump(mode="json")
        rest = {"nodes": self.nodes, "processes": self.processes, "out": str(self.out), "every": self.every}
        return json.dumps({"settings": settings, **rest})

    @classmethod
    def load(cls, line: str) -> SwarmOrder:
        raw = json.loads(line)
        return cls(**{**raw, "settings": Settings.model_validate(raw["settings"]), "out": Path(raw["out"])})


def run_all(orders: Sequence[SwarmOrder], heard: Heard) -> list[Said]:
    """What was said last about each cell: `done` or `failed`."""
    return [_run(order, partial(heard, number)) for number, order in enumerate(orders)]


def _run(order: SwarmOrder, heard: Callable[[Said], None]) -> Said:
    try:
        process = _spawn()
    except OSError as error:
        heard(word := _failed(f"cannot start a process: {error.strerror or error}"))
        return word
    try:
        word = _hear_out(process, order, heard)
    finally:
        _end(process)
    heard(word)
    return word


def _hear_out(process: subprocess.Popen[str], order: SwarmOrder, heard: Callable[[Said], None]) -> Said:
    """Its last word."""
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(BrokenPipeError):  # it is dead, and stdout will say so
        process.stdin.write(order.dump() + "\n")
        process.stdin.flush()
    for line in process.stdout:
        match said := json.loads(line):
            case {"event": "progress"}:
                heard(said)
            case {"event": "failed", "error": str(why), "mistake": bool(mistake)}:
                return {**_failed(why), "mistake": mistake}
            case _:
                return dict(said)
    return _failed(f"its process {_ending(process.wait())}")


def _spawn() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", MODULE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        start_new_session=True,  # Ctrl-C reaches it through us
    )


def _end(process: subprocess.Popen[str]) -> None:
    """The end of its stdin is the end of its swarm."""
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(BrokenPipeError):
        process.stdin.close()
    try:
        process.wait(ENDING)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()


def _failed(why: str) -> Said:
    return {"event": "failed", "why": " ".join(why.split())}


def _ending(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
