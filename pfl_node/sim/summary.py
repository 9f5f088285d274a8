"""What came out of a simulation, as one value and as JSON. Knows nothing of how it was run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pfl_node import metrics
from pfl_node.metrics import Found, Heads, NodeRecord
from pfl_node.sim.journal import plain
from pfl_node.store.files import write_atomic


@dataclass(frozen=True, slots=True)
class Summary:
    """Everything but the wall and CPU seconds follows from the settings, the faults and the seed."""

    policy: str
    task: str
    seed: int
    rounds: int
    nodes: tuple[NodeRecord, ...]
    refused: Mapping[str, int]  # messages, by reason
    models_lost: int
    virtual_seconds: float
    wall_seconds: float
    cpu_seconds: float

    @property
    def accuracy(self) -> float | None:
        return metrics.mean_accuracy(self.nodes)

    @property
    def by_cluster(self) -> dict[int, float]:
        return metrics.accuracy_by_cluster(self.nodes)

    @property
    def fair_accuracy(self) -> float | None:
        return metrics.fair_accuracy(self.by_cluster)

    @property
    def found(self) -> Found | None:
        return metrics.found_neighbours(self.nodes)

    @property
    def heads(self) -> Heads | None:
        return metrics.heads_by_cluster(self.nodes)

    @property
    def settled(self) -> bool | None:
        return None if self.heads is None else metrics.settled(self.heads)

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values. What the policy does not have is left out."""
        row: dict[str, Any] = {
            "policy": self.policy,
            "task": self.task,
            "seed": self.seed,
            "nodes": len(self.nodes),
            "rounds": self.rounds,
            "accuracy": self.accuracy,
            "fair_accuracy": self.fair_accuracy,
            "accuracy_by_cluster": self.by_cluster,
            "models_sent": sum(n.models_sent for n in self.nodes),
            "models_lost": self.models_lost,
            "bytes_sent": sum(n.bytes_sent for n in self.nodes),
            "refused": dict(sorted(self.refused.items())),
            "virtual_seconds": self.virtual_seconds,
            "wall_seconds": self.wall_seconds,
            "cpu_seconds": self.cpu_seconds,
        }
        if self.found:
            row["neighbours"] = asdict(self.found)
        if self.heads is not None:
            row |= {"heads_by_cluster": self.heads, "settled": self.settled}
        row["per_node"] = [asdict(n) for n in self.nodes]
        found: dict[str, Any] = plain(row)
        return found

    def write(self, path: Path) -> None:
        write_atomic(path, json.dumps(self.as_dict(), indent=1).encode() + b"\n")
