"""The measures of a cell by name: title, unit, which direction is better, and how to compute it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite, nan
from statistics import fmean
from typing import Any, Literal

import numpy as np

from pfl_node.lab import fairness
from pfl_node.learning.task import LOWER_IS_BETTER

Unit = Literal["%", "", "models", "MB", "rounds", "runs", "s", "x"]
COUNTED: Unit = "runs"  # of a yes or no: the runs with yes (1) are counted


@dataclass(frozen=True, slots=True)
class CellResult:
    summary: Mapping[str, Any]  # summary.json
    series: Mapping[int, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)  # round -> node -> row
    target: float | None = None

    @property
    def nodes(self) -> Sequence[Mapping[str, Any]]:
        nodes: Sequence[Mapping[str, Any]] = self.summary["per_node"]
        return nodes

    @property
    def sizes(self) -> list[int]:
        """The clusters, largest first, then by number."""
        counts = Counter(n["cluster"] for n in self.nodes if n["cluster"] is not None)
        return [c for c, _ in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))]


@dataclass(frozen=True, slots=True)
class Measure:
    title: str
    unit: Unit
    better: Literal["higher", "lower"]
    of: Callable[[CellResult], float | None]
    why_not: Callable[[CellResult], str] = lambda _: ""  # why there is no value


def summary_value(*path: str) -> Callable[[CellResult], float | None]:
    def of(found: CellResult) -> float | None:
        value: Any = found.summary
        for part in path:
            value = (value or {}).get(part)
        return None if value is None else float(value)

    return of


def _cluster(place: int) -> Callable[[CellResult], float | None]:
    """The accuracy of the largest (0) or smallest (-1) cluster."""

    def of(found: CellResult) -> float | None:
        if not (sizes := found.sizes):
            return None
        value = found.summary["accuracy_by_cluster"].get(str(sizes[place]))
        return None if value is None else float(value)

    return of


def _middle(found: CellResult) -> float | None:
    return _cluster(1)(found) if len(found.sizes) == 3 else None


def _worst_decile(found: CellResult) -> float | None:
    """The mean accuracy of the tenth of the honest nodes, at least one, that do worst."""
    known = sorted(n["accuracy"] for n in found.nodes if n.get("honest", True) and n.get("accuracy") is not None)
    return fmean(known[: max(1, (len(known) + 5) // 10)]) if known else None


def _communication(found: CellResult) -> float | None:
    """Models sent and received, as defined in Karlsson & Onoszko 2021, section 3.5."""
    nodes = found.nodes
    return fmean(n["models_sent"] + n["models_received"] for n in nodes) if nodes else None


def _fair(rule: Callable[[Sequence[fairness.Confusion]], float]) -> Callable[[CellResult], float | None]:
    """A fairness measure over the clusters, each with the sum of its nodes' confusion matrices."""

    def of(found: CellResult) -> float | None:
        groups = []
        for cluster in sorted(found.sizes):
            members = [n for n in found.nodes if n["cluster"] == cluster and n.get("honest", True)]
            matrices = [n["confusion"] for n in members if n.get("confusion")]
            if matrices:
                groups.append(np.sum(matrices, axis=0).tolist())
        gap = rule(groups) if len(groups) > 1 else nan
        return gap if isfinite(gap) else None

    return of


def mean_series(found: CellResult, what: str = "test_accuracy", cluster: int | None = None) -> dict[int, float]:
    honest = [n for n in found.nodes if n.get("honest", True)]
    members = {n["id"] for n in honest if cluster is None or n["cluster"] == cluster}
    series = {}
    for round, rows in sorted(found.series.items()):
        values = [row[what] for node, row in rows.items() if node in members and row.get(what) is not None]
        if values:
            series[round] = fmean(values)
    return series


def _ensemble(found: CellResult) -> float | None:
    """The accuracy of the weighted predictions that students learn from, in the last round."""
    return next(reversed(mean_series(found, "ensemble").values()), None)


def _rounds_to_target(found: CellResult) -> float | None:
    """The number of rounds until the mean accuracy reaches the target; None: it never does."""
    if found.target is None:
        return None
    return next((r + 1.0 for r, a in mean_series(found).items() if a >= found.target), None)


def _megabytes_to_target(found: CellResult) -> float | None:
    """The megabytes that all nodes together had sent when the mean accuracy reached the target; None: it never
    does."""
    sent = mean_series(found, "bytes_sent")
    reached = (r for r, a in mean_series(found).items() if found.target is not None and a >= found.target)
    return next((sent[r] * len(found.nodes) / 1e6 for r in reached if r in sent), None)


def _gap(found: CellResult) -> float | None:
    """The accuracy of the largest cluster minus that of the smallest."""
    high, low = _cluster(0)(found), _cluster(-1)(found)
    return None if high is None or low is None or len(found.sizes) < 2 else high - low


def _settled_after(found: CellResult) -> float | None:
    """The round after which no node changes its head; None: there are no heads, or at the end the nodes of a
    cluster use several, or two clusters the same one."""
    if not found.summary.get("settled"):
        return None
    last: dict[str, Any] = {}
    changed: int | None = None
    for round, rows in sorted(found.series.items()):
        heads = {node: row["head"] for node, row in rows.items() if "head" in row}
        if heads and any(last.get(node, head) != head for node, head in heads.items()):
            changed = round
        changed = 0 if heads and changed is None else changed
        last |= heads
    return None if changed is None else float(changed)


def _one_cluster(found: CellResult) -> str:
    return "not applicable" if len(found.sizes) < 2 else ""


def _not_reached(found: CellResult) -> str:
    return "not reached" if found.target is not None else ""


def _not_settled(found: CellResult) -> str:
    return "did not settle" if found.summary.get("settled") is False else ""


OWN = "metrics."  # a measure with this prefix is a metric of the task, as in `metrics.auc`
ROUNDS_TO = re.compile(r"rounds_to\.(\d{1,2}(\.\d+)?)")  # several targets in one table, as in `rounds_to.82`
SPEED_UP = "speed_up"  # compares two runs, so `results.py` computes it
OF_TARGET = ("rounds_to_target", "megabytes_to_target", SPEED_UP)  # depend on the target of the scale


class Measures(dict[str, Measure]):
    """Also has the metrics of any task, and rounds to any accuracy."""

    def __missing__(self, name: str) -> Measure:
        if there := ROUNDS_TO.fullmatch(name):
            target = float(there[1])

            def rounds(found: CellResult) -> float | None:
                return _rounds_to_target(replace(found, target=target / 100))

            return Measure(f"rounds to {target:g} %", "rounds", "lower", rounds, lambda _: "not reached")
        own = name.removeprefix(OWN)
        if own == name:
            raise KeyError(name)
        better: Literal["higher", "lower"] = "lower" if own.lower() in LOWER_IS_BETTER else "higher"
        return Measure(own, "", better, summary_value("metrics", own))

    def __contains__(self, name: object) -> bool:
        if super().__contains__(name) or not isinstance(name, str):
            return super().__contains__(name)
        return (name.startswith(OWN) and name != OWN) or bool(ROUNDS_TO.fullmatch(name))


MEASURES = Measures(
    {
        "accuracy": Measure("accuracy", "%", "higher", summary_value("accuracy")),
        "loss": Measure("loss", "", "lower", summary_value("loss")),
        "ensemble": Measure("ensemble", "%", "higher", _ensemble),
        "majority": Measure("majority", "%", "higher", _cluster(0)),
        "middle": Measure("middle cluster", "%", "higher", _middle),
        "minority": Measure("minority", "%", "higher", _cluster(-1)),
        "worst_decile": Measure("worst decile", "%", "higher", _worst_decile),
        "fair_accuracy": Measure("fair accuracy", "%", "higher", summary_value("fair_accuracy")),
        "demographic_parity": Measure("demographic parity", "", "lower", _fair(fairness.demographic_parity)),
        "equalized_odds": Measure("equalized odds (TPR)", "", "lower", _fair(fairness.equalized_odds)),
        "equalized_odds_sum": Measure(
            "equalized odds (TPR + FPR)", "", "lower", _fair(fairness.equalized_odds_sum)
        ),
        "precision": Measure("precision", "%", "higher", summary_value("neighbours", "precision"), _one_cluster),
        "recall": Measure("recall", "%", "higher", summary_value("neighbours", "recall"), _one_cluster),
        "kept_out": Measure("models kept out", "", "lower", summary_value("kept_out")),
        "quarantine_precision": Measure(
            "quarantine precision", "%", "higher", summary_value("quarantine", "precision")
        ),
        "quarantine_recall": Measure("quarantine recall", "%", "higher", summary_value("quarantine", "recall")),
        "models_sent": Measure("models sent", "models", "lower", summary_value("models_sent")),
        "communication": Measure("models per node, sent and received", "models", "lower", _communication),
        "megabytes": Measure("sent", "MB", "lower", lambda f: f.summary["bytes_sent"] / 1e6),
        "rounds_to_target": Measure("rounds to target", "rounds", "lower", _rounds_to_target, _not_reached),
        "megabytes_to_target": Measure("sent to target", "MB", "lower", _megabytes_to_target, _not_reached),
        SPEED_UP: Measure("speed-up", "x", "higher", lambda _: None),
        "gap": Measure("largest minus smallest cluster", "%", "lower", _gap, _one_cluster),
        "settled": Measure("settled", COUNTED, "higher", summary_value("settled")),
        "settled_after": Measure("settled after", "rounds", "lower", _settled_after, _not_settled),
        "cpu": Measure("CPU", "s", "lower", summary_value("cpu_seconds")),
    }
)


def from_paper(metric: str, value: float) -> float:
    """A printed figure in our unit: accuracies are shares, not per cent."""
    return value / 100 if MEASURES[metric].unit == "%" else value


def to_paper(metric: str, value: float) -> float:
    return value * 100 if MEASURES[metric].unit == "%" else value
