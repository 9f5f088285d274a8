"""The outcome of a swarm of real nodes, collected from the messages of its workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pfl_node.sim.outcome import NodeRecord, Outcome, own_metrics
from pfl_node.steps import DIVERGED
from pfl_node.swarm.messages import node_name
from pfl_node.swarm.supervisor import NodeSlot, Swarm
from pfl_node.types import ACCURACY, Headline

ENDED = ("done", "stopped")  # the states of nodes that shut down cleanly


@dataclass(frozen=True, slots=True)
class SwarmOutcome(Outcome):
    """Clock and network were real, so another run gives other figures."""

    failed_calls: Mapping[str, int]  # by call and reason
    wall_seconds: float
    cpu_seconds: float  # of the workers, after their imports
    processes: int = 1  # that hosted the nodes

    @classmethod
    def of(cls, swarm: Swarm, seconds: float, *, name_of: Callable[[int], str] = node_name) -> SwarmOutcome:
        names = {slot.node: name_of(slot.index) for slot in swarm.slots}
        results = [slot.result or {} for slot in swarm.slots]
        return cls(
            policy=swarm.settings.policy.name,
            task=swarm.settings.task.name,
            seed=swarm.settings.seed,
            rounds=swarm.settings.rounds,
            nodes=tuple(record(slot, name_of(slot.index), names) for slot in swarm.slots),
            refused=_total(results, "refused"),
            failed_calls=_total(results, "failed_calls"),
            wall_seconds=seconds,
            cpu_seconds=swarm.cpu,
            processes=len(swarm.shares),
        )

    @property
    def rounds_done(self) -> tuple[int, int]:
        """Of the slowest and of the fastest node, without a final exchange."""
        most = [n.rounds if self.rounds is None else min(n.rounds, self.rounds) for n in self.nodes]
        return min(most), max(most)

    @property
    def unfinished(self) -> int:
        """Nodes that did not report how they ended."""
        return sum(1 for n in self.nodes if n.state not in ENDED)


def record(slot: NodeSlot, id: str, names: Mapping[str, str]) -> NodeRecord:
    result = slot.result or {}
    last = {"accuracy": slot.last_round.get("test_accuracy"), "loss": slot.last_round.get("test_loss")}
    last |= own_metrics(slot.last_round)
    test = result.get("measured", {}).get("test", last)
    records = result.get("told", {})
    chosen = records.get("neighbours", {}).get("ids")
    return NodeRecord(
        id=id,
        cluster=slot.cluster,
        state=result.get("how", "lost"),
        rounds=slot.round,
        accuracy=test.get("accuracy"),
        loss=test.get("loss"),
        models_sent=sum(result.get("models_sent", {}).values()),
        models_received=sum(result.get("models_received", {}).values()),
        bytes_sent=result.get("bytes_sent", 0),
        bytes_received=result.get("bytes_received", 0),
        neighbours=None if chosen is None else tuple(names.get(p, p) for p in chosen),
        head=records.get("round", {}).get("head"),
        confusion=result.get("confusion"),
        honest=result.get("honest", True),
        quarantined=tuple(sorted(names.get(p, p) for p in result.get("guard", {}).get("ever", {}))),
        kept_out=sum(result.get("guard", {}).get("refused", {}).values()),
        metrics={name: value for name, value in test.items() if name not in ("accuracy", "loss")},
        headline=Headline(**result["headline"]) if "headline" in result else ACCURACY,
        diverged=records.get(DIVERGED, {}).get("round"),
    )


def _total(results: list[dict[str, Any]], key: str) -> dict[str, int]:
    total: Counter[str] = Counter()
    for result in results:
        total.update(result.get(key, {}))
    return dict(sorted(total.items()))
