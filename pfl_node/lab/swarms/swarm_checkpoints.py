"""Where the swarm of a cell keeps what it needs until it is done, and from what it goes on when it was broken off.

A state of the whole swarm is there when every node has written its own after the same number of rounds. Going on
from it is as if all nodes had been restarted there: what came later is forgotten, messages in flight are lost.
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
from pfl_node.swarm.messages import node_name, rows_of, state_of
from pfl_node.swarm.swarm_outcome import SwarmOutcome

ADDED = ("models_sent", "models_received", "refused", "failed_calls")  # counters by peer or by reason
LOOK = 0.25  # seconds between two looks at nodes that are leaving
LEAVING = 40.0  # seconds; a worker without a parent has 20


@dataclass(frozen=True, slots=True)
class Standing:
    """One node at a state of the swarm."""

    round: int = 0  # the next one
    rows: int = 0  # bytes of its events until then
    details: Mapping[str, Any] | None = None  # its counters and what it has told


@dataclass(frozen=True, slots=True)
class SwarmMark:
    """A state of the swarm; the first one is before the first round."""

    part: int
    nodes: tuple[Standing, ...]
    wall: float = 0.0
    cpu: float = 0.0

    @property
    def sent(self) -> tuple[int, ...]:
        return tuple((node.details or {}).get("bytes_sent", 0) for node in self.nodes)


class SwarmCheckpoints:
    """`await vacant()`, `go_on()`, `keep(...)` as often as there is something, `finish(...)`."""

    def __init__(self, out: Path, nodes: int) -> None:
        self.out = out  # the cell's folder
        self.path = out / "swarm"
        self.ids = node_ids(nodes)  # as in a simulation, so that all draw the same graphs and seeds
        self.names = [node_name(index) for index in range(nodes)]

    async def vacant(self) -> None:
        """Nodes whose processes lost their parent leave by themselves; wait for them."""
        end = asyncio.get_running_loop().time() + LEAVING
        for home in sorted((self.path / "nodes").glob("*")):
            while why := _in_use(home):
                if asyncio.get_running_loop().time() > end:
                    raise PflError(f"another run is under way in {self.out}: {why}")
                await asyncio.sleep(LOOK)

    def go_on(self) -> SwarmMark:
        """From the last state, or from nothing."""
        mark = self._read()
        shutil.rmtree(self.path / "nodes", ignore_errors=True)
        if mark.part == 0:
            shutil.rmtree(self.path, ignore_errors=True)
        (self.path / "rows").mkdir(parents=True, exist_ok=True)
        for id, name, standing in zip(self.ids, self.names, mark.nodes, strict=True):
            home = DataDir.open(self.path / "nodes" / name)
            home.adopt(id)
            home.close()
            rows_of(self.path, name).touch()
            os.truncate(rows_of(self.path, name), standing.rows)
            if mark.part:
                shutil.copyfile(state_of(self.path, mark.part, name), home.checkpoint)
        return mark

    def keep(self, mark: SwarmMark) -> None:
        """The events before it are on disk first; older states are not needed any more."""
        for name in self.names:
            with rows_of(self.path, name).open("rb") as file:
                os.fsync(file.fileno())
        write_atomic(self.path / "mark.json", json.dumps(asdict(mark)).encode())
        for folder in (self.path / "states").glob("*"):
            if int(folder.name) < mark.part:
                shutil.rmtree(folder)

    def finish(self, outcome: SwarmOutcome) -> None:
        """One journal and the summary; the rest is not needed any more."""
        journal = self.out / "journal.jsonl"
        part = journal.with_name(f"{journal.name}.part")
        rows = [_rows(rows_of(self.path, name)) for name in self.names]
        with part.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(line for _, line in heapq.merge(*rows, key=lambda row: row[0]))
        part.replace(journal)
        outcome.write(self.out / "summary.json")
        sync_directory(self.out)
        shutil.rmtree(self.path, ignore_errors=True)

    def _read(self) -> SwarmMark:
        """One that is not whole is none."""
        first = SwarmMark(0, tuple(Standing() for _ in self.ids))
        try:
            raw = json.loads((self.path / "mark.json").read_text(encoding="utf-8"))
            mark = SwarmMark(**{**raw, "nodes": tuple(Standing(**node) for node in raw["nodes"])})
        except (OSError, ValueError, KeyError, TypeError):
            return first
        return mark if len(mark.nodes) == len(self.ids) and self._is_there(mark) else first

    def _is_there(self, mark: SwarmMark) -> bool:
        rows = [rows_of(self.path, name) for name in self.names]
        return all(state_of(self.path, mark.part, name).exists() for name in self.names) and all(
            file.exists() and file.stat().st_size >= node.rows for file, node in zip(rows, mark.nodes, strict=True)
        )


def standings(mark: SwarmMark, said: Mapping[int, Mapping[str, Any]]) -> tuple[Standing, ...]:
    """Of what all nodes said when they had kept their states."""
    words = (said[index] for index in range(len(mark.nodes)))
    return tuple(
        Standing(word["round"], word["rows"], joined(before.details, word["details"]))
        for word, before in zip(words, mark.nodes, strict=True)
    )


def joined(before: Mapping[str, Any] | None, after: Mapping[str, Any]) -> dict[str, Any]:
    """What a node tells of two lives of it, as if they had been one."""
    if before is None:
        return dict(after)
    sums: dict[str, Any] = {key: _added(before.get(key), after.get(key)) for key in ADDED}
    sums |= {f"bytes_{way}": before[f"bytes_{way}"] + after[f"bytes_{way}"] for way in ("sent", "received")}
    return {**before, **after, **sums, "told": {**before.get("told", {}), **after.get("told", {})}}


def _added(before: Mapping[str, int] | None, after: Mapping[str, int] | None) -> dict[str, int]:
    return dict(Counter(before or {}) + Counter(after or {}))


def _in_use(home: Path) -> str | None:
    """By whom, in words."""
    try:
        DataDir.open(home).close()
    except ConfigError as error:
        return str(error)
    return None


def _rows(path: Path) -> Iterator[tuple[float, str]]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)["time"], line
