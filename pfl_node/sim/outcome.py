"""What came out of many nodes, simulated or real: the figures and summary.json. Knows nothing of how they ran."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from pfl_node.jsonable import plain
from pfl_node.sim import neighbour_metrics
from pfl_node.sim.neighbour_metrics import Detection, Heads, NeighbourPrecision, NodeRecord
from pfl_node.store.atomic import write_atomic


@dataclass(frozen=True, slots=True)
class Outcome:
    """The nodes' records and what follows from them. A kind of run adds what only it has."""

    policy: str
    task: str
    seed: int
    rounds: int | None  # asked for; None: until somebody stopped it
    nodes: tuple[NodeRecord, ...]
    refused: Mapping[str, int]  # messages, by reason

    @property
    def accuracy(self) -> float | None:
        return neighbour_metrics.mean_accuracy(self.nodes)

    @property
    def loss(self) -> float | None:
        return neighbour_metrics.mean_loss(self.nodes)

    @property
    def by_cluster(self) -> dict[int, float]:
        return neighbour_metrics.accuracy_by_cluster(self.nodes)

    @property
    def fair_accuracy(self) -> float | None:
        return neighbour_metrics.fair_accuracy(self.by_cluster)

    @property
    def found(self) -> NeighbourPrecision | None:
        return neighbour_metrics.found_neighbours(self.nodes)

    @property
    def caught(self) -> Detection | None:
        return neighbour_metrics.caught(self.nodes)

    @property
    def heads(self) -> Heads | None:
        return neighbour_metrics.heads_by_cluster(self.nodes)

    @property
    def settled(self) -> bool | None:
        return None if self.heads is None else neighbour_metrics.settled(self.heads)

    @property
    def models_sent(self) -> int:
        return sum(n.models_sent for n in self.nodes)

    @property
    def bytes_sent(self) -> int:
        return sum(n.bytes_sent for n in self.nodes)

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values. What the policy does not have is left out."""
        shared = {f.name for f in fields(Outcome)}
        row: dict[str, Any] = {
            "policy": self.policy,
            "task": self.task,
            "seed": self.seed,
            "nodes": len(self.nodes),
            "rounds": self.rounds,
            "accuracy": self.accuracy,
            "loss": self.loss,
            "fair_accuracy": self.fair_accuracy,
            "accuracy_by_cluster": self.by_cluster,
            "models_sent": self.models_sent,
            "bytes_sent": self.bytes_sent,
            "refused": dict(sorted(self.refused.items())),
            **{f.name: getattr(self, f.name) for f in fields(self) if f.name not in shared},
        }
        if self.found:
            row["neighbours"] = asdict(self.found)
        if any(n.quarantined or n.kept_out for n in self.nodes):
            row["kept_out"] = sum(n.kept_out for n in self.nodes if n.honest)
        if self.caught:
            row["malicious"] = [n.id for n in self.nodes if not n.honest]
            row["quarantine"] = asdict(self.caught)
        if self.heads is not None:
            row |= {"heads_by_cluster": self.heads, "settled": self.settled}
        row["per_node"] = [asdict(n) for n in self.nodes]
        found: dict[str, Any] = plain(row)
        return found

    def write(self, path: Path) -> None:
        write_atomic(path, json.dumps(self.as_dict(), indent=1).encode() + b"\n")
