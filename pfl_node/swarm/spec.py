"""What a swarm is told and what its workers say, as plain JSON. Knows no process and no network."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pfl_node.address import parse_address
from pfl_node.errors import ConfigError
from pfl_node.settings import Settings


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """Which nodes a worker process hosts, and how."""

    settings: Settings
    nodes: int  # in the whole swarm
    indices: tuple[int, ...]  # of this worker
    seed_address: str
    out: Path

    def dump(self) -> str:
        return json.dumps(
            {
                "settings": self.settings.model_dump(mode="json"),
                "nodes": self.nodes,
                "indices": self.indices,
                "seed_address": self.seed_address,
                "out": str(self.out),
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
                "start": s.start.model_copy(update={"peers": self.nodes - 1, "wait": 120.0}),
            }
        )


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
