"""A swarm of separate processes, as its members report it: who is there, how far, how good. Pure; without gRPC."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from pfl_node.settings import Settings
from pfl_node.sim.outcome import NodeRecord
from pfl_node.swarm.baseline import LocalRun
from pfl_node.swarm.format import percent, plural
from pfl_node.swarm.swarm_outcome import SwarmOutcome

PRESENT = ("alive", "suspect")


@dataclass(slots=True)
class WatchedNode:
    """What is known about one node: its row in the member list and its last status."""

    id: str
    name: str
    state: str
    round: int
    status: Mapping[str, Any] = field(default_factory=dict)

    @property
    def present(self) -> bool:
        return self.state in PRESENT

    @property
    def cluster(self) -> int | None:
        return self.status.get("cluster")

    @property
    def accuracy(self) -> float | None:
        found = self.status.get("measured", {}).get("test", {}).get("accuracy")
        return found if isinstance(found, float) else None


class WatchedSwarm:
    def __init__(self, settings: Settings, kinds: Mapping[int, str]) -> None:
        self.settings = settings
        self.kinds = kinds
        self.nodes: dict[str, WatchedNode] = {}

    def members(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """The member list of any member."""
        for row in rows:
            if row["role"] != "node" or row["run"] != self.settings.run:
                continue
            node = self.nodes.setdefault(
                row["id"], WatchedNode(row["id"], row["name"], row["state"], row["round"])
            )
            node.name, node.state, node.round = row["name"], row["state"], max(node.round, row["round"])

    def status(self, id: str, facts: Mapping[str, Any]) -> None:
        if node := self.nodes.get(id):
            node.status = facts

    def ended(self, journals: Mapping[str, Mapping[str, Any]]) -> None:
        """The last figures of nodes that have left since they last answered, from their journals."""
        for id, last in journals.items():
            if node := self.nodes.get(id):
                measured = {"test": {"accuracy": last.get("test_accuracy"), "loss": last.get("test_loss")}}
                node.status = {**node.status, "measured": measured, "cluster": last.get("cluster")}
                node.round = max(node.round, int(last["round"]))

    @property
    def present(self) -> list[WatchedNode]:
        return [node for node in self.nodes.values() if node.present]

    @property
    def begun(self) -> bool:
        """Whether half of the nodes have done a round."""
        return 2 * sum(node.round > 0 for node in self.present) > len(self.present) > 0

    @property
    def over(self) -> bool:
        """Every node that was there has left after its last round, or is gone."""
        return bool(self.nodes) and not self.present and any(self._is_done(node) for node in self.nodes.values())

    def _is_done(self, node: WatchedNode) -> bool:
        return self.settings.rounds is not None and node.round >= self.settings.rounds

    def line(self, alone: LocalRun | None) -> str:
        """One line: nodes, rounds, accuracy together and alone, by cluster."""
        present = self.present
        if not self.begun and not any(map(self._is_done, self.nodes.values())):
            more = "others may still load torch; the rounds begin when nobody new comes"
            return f"{plural(len(present), 'node')} joined; {more}"
        words = [f"{plural(len(present), 'node')} present"]
        if done := sum(map(self._is_done, self.nodes.values())):
            words.append(f"{done} done")
        if dead := sum(node.state == "dead" for node in self.nodes.values()):
            words.append(f"{dead} dead")
        return f"{', '.join(words)}; {self._rounds()}; test accuracy {self._accuracies(alone)}"

    def _rounds(self) -> str:
        rounds = sorted(node.round for node in self.nodes.values())
        limit = self.settings.rounds
        first, last = rounds[0], rounds[-1] if limit is None else min(rounds[-1], limit)
        span = str(last) if first >= last else f"{first} to {last}"
        return f"round {span}" + (f" of {limit}" if limit else "")

    def _accuracies(self, alone: LocalRun | None) -> str:
        together = self._split(None, [n.accuracy for n in self.nodes.values()], self._by_cluster())
        if alone is None:
            return together
        return f"together {together}, alone {self._split(alone.accuracy, [], alone.accuracy_by_cluster)}"

    def _by_cluster(self) -> dict[int, float]:
        found: dict[int, list[float]] = {}
        for node in self.nodes.values():
            if node.cluster is not None and node.accuracy is not None:
                found.setdefault(node.cluster, []).append(node.accuracy)
        return {cluster: fmean(values) for cluster, values in sorted(found.items())}

    def _split(self, mean: float | None, each: list[float | None], clusters: Mapping[int, float]) -> str:
        known = [value for value in each if value is not None]
        mean = fmean(known) if known else mean
        parts = [f"{self.kinds.get(c, f'cluster {c}')} {percent(value)}" for c, value in clusters.items()]
        return percent(mean) + (f" ({', '.join(parts)})" if len(parts) > 1 else "")

    def outcome(self, seconds: float) -> SwarmOutcome:
        settings = self.settings
        return SwarmOutcome(
            policy=settings.policy.name,
            task=settings.task.name,
            seed=settings.seed,
            rounds=settings.rounds,
            nodes=tuple(self._record(node) for node in sorted(self.nodes.values(), key=lambda n: n.name)),
            refused={},
            failed_calls={},
            wall_seconds=seconds,
            cpu_seconds=0.0,
            processes=len(self.nodes),
        )

    def _record(self, node: WatchedNode) -> NodeRecord:
        status = node.status
        chosen = status.get("told", {}).get("neighbours", {}).get("ids")
        names = {known.id: known.name for known in self.nodes.values()}
        return NodeRecord(
            id=node.name,
            cluster=node.cluster,
            state="done" if self._is_done(node) else node.state,
            rounds=node.round,
            accuracy=node.accuracy,
            loss=status.get("measured", {}).get("test", {}).get("loss"),
            models_sent=sum(status.get("models_sent", {}).values()),
            models_received=sum(status.get("models_received", {}).values()),
            bytes_sent=status.get("bytes_sent", 0),
            bytes_received=status.get("bytes_received", 0),
            neighbours=None if chosen is None else tuple(names.get(peer, peer) for peer in chosen),
            head=status.get("told", {}).get("round", {}).get("head"),
        )


def last_figures(folder: Path) -> dict[str, dict[str, Any]]:
    """By node: the cluster, the number of rounds and the last measurement in each journal below the folder. A
    journal that is not readable, or being written, is left out."""
    found: dict[str, dict[str, Any]] = {}
    for journal in sorted(folder.glob("**/journal.jsonl")):
        try:
            rows = list(_rows(journal))
        except (OSError, ValueError):
            continue
        started = [row for row in rows if row.get("event") == "started"]
        rounds = [row for row in rows if row.get("event") == "round"]
        if not started or not rounds:
            continue
        figures = {key: value for row in rows for key, value in row.items() if key.startswith("test_")}
        last = {"cluster": started[-1].get("cluster"), "round": rounds[-1]["round"] + 1, **figures}
        found[str(started[-1]["node"])] = last
    return found


def _rows(journal: Path) -> Iterator[dict[str, Any]]:
    with journal.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)
