"""What a swarm is told and what its workers say, as plain JSON. Knows no process and no network."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pfl_node.address import parse_address
from pfl_node.errors import ConfigError
from pfl_node.settings import Settings

START_WAIT = 120.0  # seconds for all nodes to load, at least


@dataclass(frozen=True, slots=True)
class TraceSpec:
    """What an experiment wants to know of the nodes (`trace.py`)."""

    every: int  # rounds from one state to the next
    messages: bool  # are the senders of models written down?
    began: float  # when the swarm was started, in seconds since 1970
    seconds: float  # that earlier lives of the swarm had before
    sent: tuple[int, ...]  # bytes that each node had sent in those

    def dump(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def load(cls, raw: Mapping[str, Any]) -> TraceSpec:
        return cls(**{**raw, "sent": tuple(raw["sent"])})


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """Which nodes a worker process hosts, and how."""

    settings: Settings
    nodes: int  # in the whole swarm
    indices: tuple[int, ...]  # of this worker
    seed_address: str
    out: Path
    trace: TraceSpec | None = None

    def dump(self) -> str:
        return json.dumps(
            {
                "settings": self.settings.model_dump(mode="json"),
                "nodes": self.nodes,
                "indices": self.indices,
                "seed_address": self.seed_address,
                "out": str(self.out),
                "trace": self.trace and self.trace.dump(),
            }
        )

    @classmethod
    def load(cls, text: str) -> WorkerSpec:
        raw: dict[str, Any] = json.loads(text)
        return cls(
            Settings.model_validate(raw["settings"]),
            raw["nodes"],
            tuple(raw["indices"]),
            raw["seed_address"],
            Path(raw["out"]),
            raw["trace"] and TraceSpec.load(raw["trace"]),
        )

    def node_settings(self, index: int) -> Settings:
        """The settings of one node: its place, its directory, and that it waits for all the others."""
        s = self.settings
        name = node_name(index)
        return s.model_copy(
            update={
                "name": name,
                "listen": "127.0.0.1:0",
                "advertise": None,
                "peer_seed": (self.seed_address,),
                "data_dir": self.out / "nodes" / name,
                "http": s.http.model_copy(update={"listen": page_of(s, index)}),
                "task": s.task.model_copy(update={"index": index, "nodes": self.nodes}),
                "start": s.start.model_copy(
                    update={"peers": self.nodes - 1, "wait": max(START_WAIT, s.start.wait)}
                ),
            }
        )


def rows_of(out: Path, name: str) -> Path:
    """Where the events of a node are."""
    return out / "rows" / f"{name}.jsonl"


def state_of(out: Path, part: int, name: str) -> Path:
    """Where the state of a node is after `part` times `every` rounds."""
    return out / "states" / f"{part:06}" / f"{name}.safetensors"


def page_of(settings: Settings, index: int) -> str | None:
    """Where a node serves its page: node i has the port of the settings + i."""
    if settings.http.listen is None:
        return None
    _, first = parse_address(settings.http.listen, what="http", any_port=True)
    if not first or first + index > 65535:
        wrong = f"http {settings.http.listen!r} gives node {index} of the swarm no port"
        raise ConfigError(f"{wrong}: say a number, node i has that + i")
    return f"{settings.http.listen.rpartition(':')[0]}:{first + index}"


def node_name(index: int) -> str:
    return f"node-{index:03d}"


def split(nodes: int, workers: int) -> list[tuple[int, ...]]:
    """Node i goes to worker i mod W, so that every worker has some of each cluster."""
    return [tuple(range(w, nodes, workers)) for w in range(min(workers, nodes))]
