"""A comparison as a table: for people, as Markdown and as JSON. Knows nothing of how the rows came about."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from pfl_node.jsonable import plain
from pfl_node.sim.attacks.colluders import bad_places
from pfl_node.sim.policy_comparison import Entrant, PolicyComparison, PolicyRow, Spread
from pfl_node.store.atomic import write_atomic

SAID_ABOVE = ("policy", "task", "nodes", "rounds")  # what a run's summary has, and its row, too
FIGURES = (
    ("accuracy",),
    ("fair_accuracy",),
    ("neighbours", "precision"),
    ("neighbours", "recall"),
    ("models_sent",),
    ("bytes_sent",),
    ("cpu_seconds",),
)


def title(found: PolicyComparison) -> str:
    first, last = found.seeds[0], found.seeds[-1]
    seeds = f"seed {first}" if first == last else f"seeds {first} to {last}"
    return f"{found.settings.task.name}, {found.nodes} nodes{_bad(found)}, {found.settings.rounds} rounds, {seeds}"


def _bad(found: PolicyComparison) -> str:
    attack = found.settings.attack
    count = len(bad_places(attack, found.nodes, found.seeds[0]))
    return f" ({count} of them malicious: {', '.join(attack.kind)})" if attack.kind else ""


def legend(found: PolicyComparison) -> str:
    spread = "mean (lowest-highest) over the seeds; " if len(found.seeds) > 1 else ""
    whose = " of the honest nodes" if found.settings.attack.kind else ""
    return f"{spread}shares in %, accuracy{whose} on test data; models and MB sent by all nodes together"


def columns(found: PolicyComparison) -> list[str]:
    return ["policy", *_measures(found)]


def cells(found: PolicyComparison, row: PolicyRow) -> list[str]:
    return [row.entrant.title, *(measure(row) for measure in _measures(found).values())]


def _measures(found: PolicyComparison) -> dict[str, Callable[[PolicyRow], str]]:
    """What the columns show. One cluster, or nobody who chose neighbours: no columns about that."""
    ranged = _ranged if len(found.seeds) > 1 else _mean
    shown: dict[str, Callable[[PolicyRow], str]] = {"accuracy": lambda row: ranged(row.accuracy)}
    if len(found.clusters) > 1:
        shown |= {f"cluster {c}": partial(_cluster, ranged, c) for c in found.clusters}
        shown["fair"] = lambda row: _mean(row.spread("fair_accuracy"))
    if any(row.spread("neighbours", "precision") for row in found.ran):
        shown["precision"] = lambda row: _mean(row.spread("neighbours", "precision"))
        shown["recall"] = lambda row: _mean(row.spread("neighbours", "recall"))
    shown["models"] = lambda row: _number(row.spread("models_sent"), ",.0f")
    shown["MB"] = lambda row: _number(row.spread("bytes_sent"), ",.1f", unit=1e6)
    shown["CPU s"] = lambda row: _number(row.spread("cpu_seconds"), ".1f")
    return shown


def _cluster(form: Callable[[Spread | None], str], cluster: str, row: PolicyRow) -> str:
    return form(row.cluster(cluster))


def _mean(spread: Spread | None) -> str:
    return _number(spread, ".1f", unit=0.01)


def _ranged(spread: Spread | None) -> str:
    return f"{_mean(spread)} ({100 * spread.low:.1f}-{100 * spread.high:.1f})" if spread else ""


def _number(spread: Spread | None, form: str, unit: float = 1.0) -> str:
    return format(spread.mean / unit, form) if spread else ""


def knobs(found: PolicyComparison) -> list[str]:
    """Who did not run with its own defaults, and with what instead; a line for those that have the same."""
    alike: dict[str, list[str]] = {}
    for row in found.ran:
        alike.setdefault(_knobs(row.entrant), []).append(row.entrant.title)
    return [f"{', '.join(titles)}: {text}" for text, titles in alike.items() if text]


def _knobs(entrant: Entrant) -> str:
    size = {k: v for k, v in entrant.fit.knobs.items() if k not in entrant.given}
    size |= {"rounds": entrant.fit.rounds} if entrant.fit.rounds else {}
    fitted, given = (" ".join(f"{k}={_value(v)}" for k, v in which.items()) for which in (size, entrant.given))
    return ", ".join(filter(None, (fitted and f"{fitted} (fitted)", given and f"{given} (given)")))


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def failures(found: PolicyComparison) -> list[str]:
    return [f"{row.entrant.title} did not run: {row.failure}" for row in found.failed]


# -- files and programs ----------------------------------------------------------------------------------------


def markdown(found: PolicyComparison) -> str:
    heads = columns(found)
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *(cells(found, row) for row in found.ran)]
    table = ["| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines]
    lists = [*(f"- {line}" for line in failures(found)), *(f"- {line}" for line in knobs(found))]
    return "\n".join([f"# {title(found)}", "", legend(found), "", *table, "", *lists]).rstrip() + "\n"


def as_dict(found: PolicyComparison) -> dict[str, Any]:
    """`settings` are those of all; a row says what it had of its own."""
    return {
        "task": found.settings.task.name,
        "nodes": found.nodes,
        "rounds": found.settings.rounds,
        "seeds": list(found.seeds),
        "rows": [_row(found, row) for row in found.rows],
        "settings": found.settings.model_dump(mode="json", exclude={"policy"}),
    }


def _row(found: PolicyComparison, row: PolicyRow) -> dict[str, Any]:
    entrant = row.entrant
    head = {
        "policy": entrant.title,
        "name": entrant.name,
        "rounds": entrant.fit.rounds or found.settings.rounds,
        "knobs": plain(entrant.knobs),
    }
    if row.failure is not None:
        return {**head, "failure": row.failure}
    figures = {path[-1]: _spread(row.spread(*path)) for path in FIGURES}
    clusters = {c: _spread(row.cluster(c)) for c in found.clusters}
    runs = [{k: v for k, v in run.items() if k not in SAID_ABOVE} for run in row.runs]
    return {**head, **figures, "accuracy_by_cluster": clusters, "runs": runs}


def _spread(spread: Spread | None) -> dict[str, float] | None:
    return asdict(spread) if spread else None


def write(found: PolicyComparison, folder: Path) -> None:
    """compare.json and compare.md."""
    write_atomic(folder / "compare.json", json.dumps(as_dict(found), indent=1).encode() + b"\n")
    write_atomic(folder / "compare.md", markdown(found).encode())
