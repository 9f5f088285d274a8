"""The results of a run of many nodes, simulated or real: records, figures and summary.json."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import Any

from pfl_node.jsonable import plain
from pfl_node.store.atomic import write_atomic
from pfl_node.types import ACCURACY, Headline

Cluster = int
Heads = dict[Cluster, dict[int, int]]  # for each cluster, how many of its nodes chose each head
REASONS = {
    "flood": "the receiver's inbox was full",
    "not_ready": "the peer had nothing to serve yet",
    "stale_round": "the round was over",
    "future_round": "the round was too far ahead",
    "not_finite": "the model, or a vector beside it, has NaN or infinite numbers",
    "layout": "another layout or other vectors: do all nodes have the same task, model and policy?",
    "outlier": "the guard judged the model an outlier",
    "quarantined": "the guard had the sender in quarantine",
}  # why messages are refused in a run without injected faults


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """One node at the end of a run. None: unknown, or not applicable to the policy."""

    id: str
    cluster: Cluster | None = None
    state: str = "left"
    rounds: int = 0
    accuracy: float | None = None  # on its own test data
    loss: float | None = None
    models_sent: int = 0
    models_received: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    neighbours: tuple[str, ...] | None = None  # chosen by the policy
    head: int | None = None  # FACADE: the chosen head
    confusion: list[list[int]] | None = None  # on its test data: rows are true classes, columns predicted ones
    honest: bool = True  # False for the malicious nodes of an experiment
    quarantined: tuple[str, ...] = ()  # peers that its guard ever quarantined
    kept_out: int = 0  # models that its guard rejected
    metrics: Mapping[str, float] = field(default_factory=dict)  # the task's metrics, on the node's test data
    headline: Headline = ACCURACY
    diverged: int | None = None  # the last round with a training or a gradient that was discarded

    def figure(self, name: str) -> float | None:
        """The loss, the accuracy or a metric of the task."""
        return {"accuracy": self.accuracy, "loss": self.loss, **self.metrics}.get(name)

    def as_dict(self) -> dict[str, Any]:
        """`metrics` is left out if the task defines none, and `diverged` if no training was discarded."""
        row = asdict(self)
        if not self.metrics and self.headline == ACCURACY:
            del row["metrics"], row["headline"]
        if self.diverged is None:
            del row["diverged"]
        return row


@dataclass(frozen=True, slots=True)
class PrecisionRecall:
    precision: float | None
    recall: float | None


def fair_accuracy(by_cluster: Mapping[Cluster, float], alpha: float = 2 / 3) -> float | None:
    """alpha * mean + (1 - alpha) * (1 - (best - worst)), over the clusters' accuracies (Trinca 2024, 3.3)."""
    if not by_cluster:
        return None
    values = list(by_cluster.values())
    return alpha * fmean(values) + (1 - alpha) * (1 - (max(values) - min(values)))


def _mean(values: Iterable[float | None]) -> float | None:
    """The mean of the known and finite values."""
    known = [value for value in values if value is not None and isfinite(value)]
    return fmean(known) if known else None


def own_metrics(figures: Mapping[str, float]) -> dict[str, float]:
    """The task's own metrics among the figures of a round."""
    found = {name.removeprefix("test_"): value for name, value in figures.items() if name.startswith("test_")}
    return {name: value for name, value in found.items() if name not in ("loss", "accuracy")}


def refusals(*counts: Mapping[str, int]) -> str:
    """How many messages were refused in some runs, and why; empty: none."""
    total = sum((Counter(one) for one in counts), Counter[str]())
    why = [f"{n:,} {name}" + (f" ({REASONS[name]})" if name in REASONS else "") for name, n in total.most_common()]
    return f"{total.total():,} messages were refused without any injected fault: {', '.join(why)}" if why else ""


def divergence(rounds: Iterable[int | None]) -> str:
    """How many of these nodes discarded a training; empty: none did."""
    known = list(rounds)
    n = sum(round is not None for round in known)
    what = "a training or gradient that was not finite"
    todo = "lower train.lr, or look for a correction or a penalty that is not finite"
    return f"{n:,} of {len(known):,} nodes discarded {what}: {todo}" if n else ""


def misfits(counts: Mapping[str, int]) -> str:
    """Refusals that no network fault explains; empty: none."""
    n = counts.get("layout", 0)
    return f"{n:,} messages were refused as layout ({REASONS['layout']})" if n else ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The nodes' records and the measures computed from them. Subclasses add fields of their kind of run."""

    policy: str
    task: str
    seed: int
    rounds: int | None  # requested; None: until stopped
    nodes: tuple[NodeRecord, ...]
    refused: Mapping[str, int]  # refused messages by reason

    @property
    def _honest(self) -> list[NodeRecord]:
        """Measures of quality include only these nodes."""
        return [n for n in self.nodes if n.honest]

    @property
    def _clusters(self) -> dict[Cluster, list[NodeRecord]]:
        known = sorted({n.cluster for n in self.nodes if n.cluster is not None})
        return {c: [n for n in self.nodes if n.cluster == c] for c in known}

    @property
    def accuracy(self) -> float | None:
        return _mean(n.accuracy for n in self._honest)

    @property
    def loss(self) -> float | None:
        return _mean(n.loss for n in self._honest)

    @property
    def by_cluster(self) -> dict[Cluster, float]:
        """The accuracy of each cluster for which it is known."""
        means = {c: _mean(n.accuracy for n in nodes if n.honest) for c, nodes in self._clusters.items()}
        return {c: mean for c, mean in means.items() if mean is not None}

    @property
    def fair_accuracy(self) -> float | None:
        return fair_accuracy(self.by_cluster)

    @property
    def neighbour_precision(self) -> PrecisionRecall | None:
        """Precision is the share of the chosen neighbours that are in the node's own cluster; recall is the share
        of its cluster that the node chose. Both are means over the nodes. None if no node chose neighbours or
        there are fewer than two clusters. A node that chose none counts for recall only."""
        members = {c: {n.id for n in nodes} for c, nodes in self._clusters.items()}
        chose = [n for n in self._honest if n.neighbours is not None and n.cluster is not None]
        if len(members) < 2 or not chose:
            return None
        precisions, recalls = [], []
        for n in chose:
            assert n.cluster is not None
            mine, picked = members[n.cluster] - {n.id}, set(n.neighbours or ()) - {n.id}
            precisions += [len(picked & mine) / len(picked)] if picked else []
            recalls += [len(picked & mine) / len(mine)] if mine else []
        return PrecisionRecall(_mean(precisions), _mean(recalls))

    @property
    def detection(self) -> PrecisionRecall | None:
        """Precision is the share of quarantined nodes that are malicious; recall is the share of malicious nodes
        that were quarantined. Both are taken over all (honest, malicious) pairs. None if no node is malicious."""
        bad = {n.id for n in self.nodes if not n.honest}
        if not bad:
            return None
        quarantined = [peer for n in self._honest for peer in n.quarantined]
        hits = sum(peer in bad for peer in quarantined)
        possible = len(bad) * len(self._honest)
        return PrecisionRecall(
            hits / len(quarantined) if quarantined else None, hits / possible if possible else None
        )

    @property
    def headline(self) -> Headline:
        return next((n.headline for n in self.nodes), ACCURACY)

    @property
    def metrics(self) -> dict[str, float]:
        """The means of the task's own metrics."""
        names = dict.fromkeys(name for n in self._honest for name in n.metrics)
        means = {name: self.figure(name) for name in names}
        return {name: mean for name, mean in means.items() if mean is not None}

    def figure(self, name: str) -> float | None:
        """The mean loss, accuracy or metric of the task."""
        return _mean(n.figure(name) for n in self._honest)

    @property
    def headline_by_cluster(self) -> dict[Cluster, float]:
        found = {
            c: _mean(n.figure(self.headline.name) for n in nodes if n.honest)
            for c, nodes in self._clusters.items()
        }
        return {c: mean for c, mean in found.items() if mean is not None}

    @property
    def heads(self) -> Heads | None:
        """None if no node chose a head or no cluster is known."""
        counts = {c: Counter(n.head for n in nodes if n.head is not None) for c, nodes in self._clusters.items()}
        return {c: dict(sorted(count.items())) for c, count in counts.items() if count} or None

    @property
    def settled(self) -> bool | None:
        """All nodes of a cluster chose the same head, and no two clusters share one."""
        if (heads := self.heads) is None:
            return None
        chosen = {head for count in heads.values() for head in count}
        return all(len(count) == 1 for count in heads.values()) and len(chosen) == len(heads)

    @property
    def models_sent(self) -> int:
        return sum(n.models_sent for n in self.nodes)

    @property
    def bytes_sent(self) -> int:
        return sum(n.bytes_sent for n in self.nodes)

    def as_dict(self) -> dict[str, Any]:
        """JSON values, without the measures that do not apply to the policy."""
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
        if self.neighbour_precision:
            row["neighbours"] = asdict(self.neighbour_precision)
        if any(n.quarantined or n.kept_out for n in self.nodes):
            row["kept_out"] = sum(n.kept_out for n in self.nodes if n.honest)
        if self.detection:
            row["malicious"] = [n.id for n in self.nodes if not n.honest]
            row["quarantine"] = asdict(self.detection)
        if self.heads is not None:
            row |= {"heads_by_cluster": self.heads, "settled": self.settled}
        if self.metrics or self.headline != ACCURACY:
            row |= {"headline": asdict(self.headline), "metrics": self.metrics}
            row["headline_by_cluster"] = self.headline_by_cluster
        row["per_node"] = [n.as_dict() for n in self.nodes]
        found: dict[str, Any] = plain(row)
        return found

    def write(self, path: Path) -> None:
        write_atomic(path, json.dumps(self.as_dict(), indent=1).encode() + b"\n")


@dataclass(frozen=True, slots=True)
class Summary(Outcome):
    """All fields but wall_seconds and cpu_seconds are determined by the settings, the faults and the seed."""

    models_lost: int
    virtual_seconds: float
    wall_seconds: float
    cpu_seconds: float
