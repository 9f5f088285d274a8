"""The files from which an interrupted swarm of a cell resumes.

The swarm has a state once every node has saved its own after the same number of rounds. Resuming restarts all
nodes from there: later events are discarded, and messages in flight are lost.
"""

from __future__ import annotations

import asyncio
import heapq
import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pfl_node.errors import ConfigError, PflError
from pfl_node.sim.faults import node_ids
from pfl_node.store.atomic import sync_directory, write_atomic
from pfl_node.store.data_dir import DataDir
from pfl_node.swarm.messages import events_path, node_name, state_path
from pfl_node.swarm.swarm_outcome import SwarmOutcome

COUNTERS = ("models_sent", "models_received", "refused", "failed_calls")  # counters by peer or by reason
POLL = 0.25  # seconds
LEAVING = 40.0  # seconds; a worker without a parent ends after 20


@dataclass(frozen=True, slots=True)
class NodeMark:
    round: int = 0  # the next round
    rows: int = 0  # bytes of its event file at that time
    details: Mapping[str, Any] | None = None  # its counters and its last records


@dataclass(frozen=True, slots=True)
class SwarmMark:
    """A state of the swarm. Part 0 is the beginning."""

    part: int
    nodes: tuple[NodeMark, ...]
    wall: float = 0.0
    cpu: float = 0.0

    @property
    def sent(self) -> tuple[int, ...]:
        return tuple((node.details or {}).get("bytes_sent", 0) for node in self.nodes)


class SwarmCheckpoints:
    """Call in this order: `wait_until_free`, `resume`, any number of `save`, `finish`."""

    def __init__(self, out: Path, nodes: int) -> None:
        self.out = out  # the cell's folder
        self.path = out / "swarm"
        self.ids = node_ids(nodes)  # the ids of a simulation, so that nodes draw the same graphs and seeds
        self.names = [node_name(index) for index in range(nodes)]

    async def wait_until_free(self) -> None:
        """Worker processes that lost their parent end by themselves; wait for them."""
        end = asyncio.get_running_loop().time() + LEAVING
        for home in sorted((self.path / "nodes").glob("*")):
            while why := _in_use(home):
                if asyncio.get_running_loop().time() > end:
                    raise PflError(f"another run is active in {self.out}: {why}")
                await asyncio.sleep(POLL)

    def resume(self) -> SwarmMark:
        """Prepare the data directories from the last state, or from nothing."""
        mark = self._read()
        shutil.rmtree(self.path / "nodes", ignore_errors=True)
        if mark.part == 0:
            shutil.rmtree(self.path, ignore_errors=True)
        (self.path / "rows").mkdir(parents=True, exist_ok=True)
        for id, name, node in zip(self.ids, self.names, mark.nodes, strict=True):
            home = DataDir.open(self.path / "nodes" / name)
            home.adopt(id)
            home.close()
            events_path(self.path, name).touch()
            os.truncate(events_path(self.path, name), node.rows)
            if mark.part:
                shutil.copyfile(state_path(self.path, mark.part, name), home.checkpoint)
        return mark

    def save(self, mark: SwarmMark) -> None:
        """Sync the events first, then write the mark, then delete older states."""
        for name in self.names:
            with events_path(self.path, name).open("rb") as file:
                os.fsync(file.fileno())
        write_atomic(self.path / "mark.json", json.dumps(asdict(mark)).encode())
        for folder in (self.path / "states").glob("*"):
            if int(folder.name) < mark.part:
                shutil.rmtree(folder)

    def finish(self, outcome: SwarmOutcome) -> None:
        """Merge the event files into one journal, write the summary, delete the rest."""
        journal = self.out / "journal.jsonl"
        part = journal.with_name(f"{journal.name}.part")
        rows = [_rows(events_path(self.path, name)) for name in self.names]
        with part.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(line for _, line in heapq.merge(*rows, key=lambda row: row[0]))
        part.replace(journal)
        outcome.write(self.out / "summary.json")
        sync_directory(self.out)
        shutil.rmtree(self.path, ignore_errors=True)

    def _read(self) -> SwarmMark:
        """Part 0 if there is no complete mark."""
        first = SwarmMark(0, tuple(NodeMark() for _ in self.ids))
        try:
            raw = json.loads((self.path / "mark.json").read_text(encoding="utf-8"))
            mark = SwarmMark(**{**raw, "nodes": tuple(NodeMark(**node) for node in raw["nodes"])})
        except (OSError, ValueError, KeyError, TypeError):
            return first
        return mark if len(mark.nodes) == len(self.ids) and self._is_complete(mark) else first

    def _is_complete(self, mark: SwarmMark) -> bool:
        rows = [events_path(self.path, name) for name in self.names]
        return all(state_path(self.path, mark.part, name).exists() for name in self.names) and all(
            file.exists() and file.stat().st_size >= node.rows for file, node in zip(rows, mark.nodes, strict=True)
        )


def combined(before: Mapping[str, Any] | None, after: Mapping[str, Any]) -> dict[str, Any]:
    """The details of a node over two incarnations, as if it had never been restarted."""
    if before is None:
        return dict(after)
    sums: dict[str, Any] = {
        key: dict(Counter(before.get(key) or {}) + Counter(after.get(key) or {})) for key in COUNTERS
    }
    sums |= {f"bytes_{way}": before[f"bytes_{way}"] + after[f"bytes_{way}"] for way in ("sent", "received")}
    return {**before, **after, **sums, "told": {**before.get("told", {}), **after.get("told", {})}}


def _in_use(home: Path) -> str | None:
    """The error if the data directory is in use; None: it is free."""
    try:
        DataDir.open(home).close()
    except ConfigError as error:
        return str(error)
    return None


def _rows(path: Path) -> Iterator[tuple[float, str]]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)["time"], line
