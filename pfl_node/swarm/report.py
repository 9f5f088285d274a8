"""What came out of a swarm of real nodes, as figures and as a short text for people."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table

from pfl_node import metrics
from pfl_node.metrics import NodeRecord
from pfl_node.store.files import write_atomic
from pfl_node.swarm.parent import Seat, Swarm
from pfl_node.swarm.spec import node_name

PICTURE = 24  # nodes; a bigger picture does not fit a terminal


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything a report needs."""

    policy: str
    task: str
    seed: int
    rounds: int | None
    nodes: tuple[NodeRecord, ...]
    refused: dict[str, int]
    failed_calls: dict[str, int]
    seconds: float
    cpu_seconds: float

    @classmethod
    def of(cls, swarm: Swarm, seconds: float) -> Outcome:
        names = {seat.node: node_name(seat.index) for seat in swarm.seats}
        results = [seat.result or {} for seat in swarm.seats]
        return cls(
            policy=swarm.settings.policy.name,
            task=swarm.settings.task.name,
            seed=swarm.settings.seed,
            rounds=swarm.settings.rounds,
            nodes=tuple(_record(seat, names) for seat in swarm.seats),
            refused=_total(results, "refused"),
            failed_calls=_total(results, "failed_calls"),
            seconds=seconds,
            cpu_seconds=swarm.cpu,
        )

    def as_dict(self) -> dict[str, Any]:
        by_cluster = metrics.accuracy_by_cluster(self.nodes)
        found, heads = metrics.found_neighbours(self.nodes), metrics.heads_by_cluster(self.nodes)
        return {
            **{k: v for k, v in asdict(self).items() if k != "nodes"},
            "nodes": len(self.nodes),
            "accuracy": metrics.mean_accuracy(self.nodes),
            "accuracy_by_cluster": by_cluster,
            "fair_accuracy": metrics.fair_accuracy(by_cluster),
            "neighbours": asdict(found) if found else None,
            "heads_by_cluster": heads,
            "settled": metrics.settled(heads) if heads else None,
            "models_sent": sum(n.models_sent for n in self.nodes),
            "bytes_sent": sum(n.bytes_sent for n in self.nodes),
            "per_node": [asdict(n) for n in self.nodes],
        }

    def write(self, path: Path) -> None:
        write_atomic(path, json.dumps(self.as_dict(), indent=1).encode() + b"\n")


def _record(seat: Seat, names: dict[str, str]) -> NodeRecord:
    result = seat.result or {}
    test = result.get("measured", {}).get("test", {})
    told = result.get("told", {})
    chosen = told.get("neighbours", {}).get("ids")
    return NodeRecord(
        id=node_name(seat.index),
        cluster=seat.cluster,
        state=result.get("how", "lost"),
        rounds=seat.round,
        accuracy=test.get("accuracy"),
        loss=test.get("loss"),
        models_sent=sum(result.get("models_sent", {}).values()),
        models_received=sum(result.get("models_received", {}).values()),
        bytes_sent=result.get("bytes_sent", 0),
        bytes_received=result.get("bytes_received", 0),
        neighbours=None if chosen is None else tuple(names.get(p, p) for p in chosen),
        head=told.get("round", {}).get("head"),
    )


def _total(results: list[dict[str, Any]], key: str) -> dict[str, int]:
    total: Counter[str] = Counter()
    for result in results:
        total.update(result.get(key, {}))
    return dict(sorted(total.items()))


def show(outcome: Outcome, console: Console, *, local: dict[int, float] | None = None) -> None:
    """The table per cluster (against `local`, where it was run), who found whom, and what it cost."""
    table = Table(title="test accuracy", title_justify="left")
    table.add_column("cluster")
    table.add_column("nodes", justify="right")
    if local is not None:
        table.add_column("alone", justify="right")
    table.add_column(f"with {outcome.policy}", justify="right", style="bold")
    by_cluster = metrics.accuracy_by_cluster(outcome.nodes)
    for cluster, accuracy in by_cluster.items():
        members = [n for n in outcome.nodes if n.cluster == cluster]
        alone = [] if local is None else [_percent(local.get(cluster))]
        table.add_row(str(cluster), str(len(members)), *alone, _percent(accuracy))
    if len(by_cluster) != 1:
        overall = metrics.mean_accuracy(outcome.nodes)
        known = [local[n.cluster] for n in outcome.nodes if local and n.cluster in local]
        alone = [] if local is None else [_percent(fmean(known) if known else None)]
        table.add_row("all", str(len(outcome.nodes)), *alone, _percent(overall), end_section=True)
    console.print(table)
    if picture := _picture(outcome.nodes):
        console.print(picture)
    for line in (*_who_found_whom(outcome), *_cost(outcome)):
        console.print(line, highlight=False)


def _picture(nodes: Sequence[NodeRecord]) -> Table | None:
    """Who chose whom, a row a node: + of its own cluster, x of another one."""
    if len(nodes) > PICTURE or not any(n.neighbours for n in nodes):
        return None
    table = Table(
        title="who found whom (o itself, + same kind of data, x another)", title_justify="left", box=None
    )
    table.add_column("")
    for n in nodes:
        table.add_column(n.id[-2:], justify="center")
    for n in nodes:
        marks = [_mark(n, other) for other in nodes]
        table.add_row(f"{n.id} cluster {n.cluster}", *marks)
    return table


def _mark(n: NodeRecord, other: NodeRecord) -> str:
    if other.id == n.id:
        return "[dim]o[/dim]"
    if other.id not in (n.neighbours or ()):
        return "[dim].[/dim]"
    return "[green]+[/green]" if other.cluster == n.cluster else "[red]x[/red]"


def _who_found_whom(outcome: Outcome) -> list[str]:
    lines = []
    if found := metrics.found_neighbours(outcome.nodes):
        lines.append(
            "who found whom: of the chosen neighbours "
            f"{_percent(found.precision)} have the same kind of data (precision); "
            f"of all nodes with such data {_percent(found.recall)} were found (recall)"
        )
    if heads := metrics.heads_by_cluster(outcome.nodes):
        for cluster, counts in heads.items():
            told = ", ".join(f"{n} on head {head}" for head, n in counts.items())
            lines.append(f"who found whom: cluster {cluster}: {told}")
        lines.append("each cluster has one head of its own" if metrics.settled(heads) else "not settled yet")
    return lines


def _cost(outcome: Outcome) -> list[str]:
    models = sum(n.models_sent for n in outcome.nodes)
    moved = sum(n.bytes_sent for n in outcome.nodes)
    lines = [f"moved: {models:,} models, {moved / 1e6:,.1f} MB, in {outcome.seconds:.1f} s; no raw data"]
    if outcome.refused:
        lines.append("refused: " + ", ".join(f"{why} {n}" for why, n in outcome.refused.items()))
    if lost := sum(1 for n in outcome.nodes if n.state not in ("done", "stopped")):
        lines.append(f"{lost} nodes did not finish")
    return lines


def _percent(share: float | None) -> str:
    return "unknown" if share is None else f"{100 * share:.1f} %"
