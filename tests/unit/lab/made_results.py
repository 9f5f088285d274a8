"""A result's folder made by hand: what `lab run` would leave, with figures from a formula. Nothing is run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from math import exp
from pathlib import Path
from typing import Any

from pfl_node.lab import spec
from pfl_node.lab.experiment import Cell, Experiment
from pfl_node.lab.results_dir import ResultsDir, record_environment
from pfl_node.sim.outcome import fair_accuracy

SPEC = """
title = "Majority and minority"
paper = "Somebody 2024, table 1"
about = "Made by hand."
clusters = ["majority", "minority"]
metrics = ["accuracy", "majority", "minority", "fair_accuracy", "precision", "megabytes"]
plots = {plots}
target = 0.7

[settings]
task = {{ name = "digits" }}
eval = {{ every = 5 }}

[paper_scale]
nodes = 32
rounds = 40

[quick_scale]
nodes = {nodes}
rounds = {rounds}
seeds = {seeds}
{sweep}
[[run]]
label = "Local"
settings = {{ policy = {{ name = "local" }} }}

[[run]]
label = "EL"
settings = {{ policy = {{ name = "el", degree = 3 }} }}
figures = {{ majority = 72.0, minority = 38.8 }}

[[run]]
label = "FACADE"
settings = {{ policy = {{ name = "facade" }}, train = {{ lr = 0.01 }} }}
figures = {{ majority = 73.3, minority = 60.0 }}

[[claim]]
metric = "minority"
higher = "FACADE"
lower = "EL"
by = 10

[[claim]]
metric = "accuracy"
higher = "Local"
lower = "FACADE"
"""
PLOTS = '["accuracy", "accuracy_over_bytes", "who_from_whom", "settlement", "fairness", "precision_recall"]'
LEVEL = {"Local": (0.6, 0.58), "EL": (0.72, 0.39), "FACADE": (0.73, 0.6)}  # majority, minority
MODEL = 40_000  # bytes


def written(folder: Path, *, name: str = "mine", **wishes: Any) -> Path:
    """The spec as a file; wishes are the words in braces."""
    words = {"plots": PLOTS, "nodes": 8, "rounds": 20, "seeds": 2, "sweep": ""} | wishes
    text = SPEC.format(**words)
    if "sweep" in wishes:
        text = text.replace("figures = { majority = 72.0, minority = 38.8 }", "")
        text = text.replace("figures = { majority = 73.3, minority = 60.0 }", "")
    path = folder / f"{name}.toml"
    path.write_text(text, encoding="utf-8")
    return path


def made(
    path: Path, experiment: Experiment, *, leave_out: tuple[str, ...] = (), better: float = 0.0
) -> ResultsDir:
    """All cells are done, but those whose folder is left out."""
    folder = ResultsDir(path)
    folder.prepare(experiment)
    for cell in experiment.cells:
        if cell.folder not in leave_out:
            folder.begin(cell)
            record_environment(folder.place(cell))
            _finish(folder.place(cell), cell, better)
    return folder


def result(tmp_path: Path, *, better: float = 0.0, leave_out: tuple[str, ...] = (), **wishes: Any) -> Path:
    """A whole folder, from the spec above."""
    tmp_path.mkdir(parents=True, exist_ok=True)
    experiment = spec.load(str(written(tmp_path, **wishes)))
    return made(tmp_path / "result", experiment, leave_out=leave_out, better=better).path


def named(experiment: Experiment, name: str) -> Experiment:
    return replace(experiment, name=name)


def accuracy(cell: Cell, cluster: int, round: int, better: float = 0.0) -> float:
    rise = 1 - exp(-(round + 1) / (6 + 2 * cell.seed))
    return (LEVEL[cell.run][cluster] + better + 0.01 * cell.seed) * rise


def _finish(place: Path, cell: Cell, better: float) -> None:
    rounds = cell.settings.rounds or 1
    minority = max(1, cell.nodes // 4)
    ids = [f"n{i:03}" for i in range(cell.nodes)]
    cluster = {id: int(i >= cell.nodes - minority) for i, id in enumerate(ids)}
    rows = list(_journal(cell, ids, cluster, rounds, better))
    (place / "journal.jsonl").write_text("".join(_line(row) for row in rows), encoding="utf-8")
    final = {c: accuracy(cell, c, rounds - 1, better) for c in (0, 1)}
    per_node: list[dict[str, Any]] = [
        {
            "id": id,
            "cluster": c,
            "accuracy": final[c],
            "models_sent": 2,
            "models_received": 2,
            "confusion": _confusion(final[c], c),
        }
        for id, c in cluster.items()
    ]
    models = 0 if cell.run == "Local" else rounds * cell.nodes * 2
    summary = {
        "accuracy": sum(n["accuracy"] for n in per_node) / len(ids),
        "fair_accuracy": fair_accuracy(final),
        "accuracy_by_cluster": {str(c): a for c, a in final.items()},
        "models_sent": models,
        "bytes_sent": models * MODEL,
        "wall_seconds": 4.0,
        "cpu_seconds": 3.0,
        "per_node": per_node,
        **({"neighbours": {"precision": 0.9, "recall": 0.5}, "settled": True} if cell.run == "FACADE" else {}),
    }
    if cell.run == "FACADE":
        summary["heads_by_cluster"] = {"0": {"0": len(ids) - minority}, "1": {"1": minority}}
    (place / "summary.json").write_text(json.dumps(summary), encoding="utf-8")


def _journal(
    cell: Cell, ids: list[str], cluster: dict[str, int], rounds: int, better: float
) -> Iterator[dict[str, Any]]:
    n = len(ids)
    for t in range(rounds):
        for i, id in enumerate(ids):
            senders = [] if cell.run == "Local" else [ids[(i + t + 1) % n], ids[(i - t - 2) % n]]
            for sender in senders:
                yield {"event": "taken", "call": "send", "node": id, "from": sender, "round": t}
            row: dict[str, Any] = {"event": "round", "node": id, "round": t}
            if cell.run == "FACADE":
                row |= {"head": cluster[id] if t > 5 + i % 4 else i % 2, "from": senders[: 1 + i % 2]}
                row["losses"] = [exp(-t / 5) + 0.1 * (head != cluster[id]) * t for head in (0, 1)]
            if (t + 1) % 5 == 0:
                row["test_accuracy"] = accuracy(cell, cluster[id], t, better)
                row["test_loss"] = 1 - row["test_accuracy"]
                row["bytes_sent"] = len(senders) * MODEL * (t + 1)
            yield row


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row, sort_keys=True, separators=(",", ":")) + "\n"


def _confusion(right: float, cluster: int) -> list[list[int]]:
    """Three classes; what is wrong falls upon the next class, in the minority upon the first."""
    n, hit = 100, round(100 * right)
    rows = []
    for true in range(3):
        row = [0, 0, 0]
        row[true] = hit
        row[(true + 1) % 3 if cluster == 0 or true == 0 else 0] += n - hit
        rows.append(row)
    return rows
