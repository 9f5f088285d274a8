"""A simulated node as values: what it is to do, and how it stands between two segments of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from pfl_node.node.ports import Plan as Plan
from pfl_node.sim.world import Traffic
from pfl_node.types import Eval, Split

State = Literal["away", "up", "crashed", "left"]


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """All that must go on."""

    state: State
    checkpoint: dict[str, Any] | None  # of its policy
    traffic: Traffic
    reports: int
    told: dict[str, Any]
    measured: dict[Split, Eval]
    guard: dict[str, Any]
    privacy: dict[str, Any]

    def row(self) -> dict[str, Any]:
        """Everything but the checkpoint."""
        return asdict(replace(self, checkpoint=None))


def held_from(row: Mapping[str, Any], checkpoint: dict[str, Any] | None) -> NodeSnapshot:
    """The inverse of `row`, read from JSON, where a number that is none has become null."""
    scores = {split: Eval(**{k: nan_for(v) for k, v in s.items()}) for split, s in row["measured"].items()}
    traffic = Traffic(**row["traffic"] | {"refused": Counter(row["traffic"]["refused"])})
    return NodeSnapshot(
        row["state"], checkpoint, traffic, row["reports"], row["told"], scores, row["guard"], row["privacy"]
    )


def nan_for(value: Any) -> Any:
    return float("nan") if value is None else value
