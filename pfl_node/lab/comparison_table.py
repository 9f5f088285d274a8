"""A comparison of policies as a table: for people, as Markdown and as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from pfl_node.jsonable import plain
from pfl_node.lab.policy_comparison import Entrant, PolicyComparison
from pfl_node.lab.report.result_table import markdown_table
from pfl_node.lab.results import Estimate
from pfl_node.learning.tasks import TESTED, mix_of
from pfl_node.sim.attacks.malicious import malicious_places
from pfl_node.store.atomic import write_atomic

SHARED = ("policy", "task", "nodes", "rounds")  # keys of a run's summary that its row has too
FIGURES = (
    ("accuracy",),
    ("loss",),
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
    count = len(malicious_places(attack, found.nodes, found.seeds[0]))
    return f" ({count} of them malicious: {', '.join(attack.kind)})" if attack.kind else ""


def legend(found: PolicyComparison) -> str:
    spread = "mean (lowest-highest) over the seeds; " if len(found.seeds) > 1 else ""
    whose = " of the honest nodes" if found.settings.attack.kind else ""
    mix = mix_of(found.settings.task)
    data = f"test data with {TESTED[mix]}" if mix else "test data"
    return f"{spread}shares in %, {found.headline.name}{whose} on {data}; models and MB sent by all nodes together"


def columns(found: PolicyComparison) -> list[str]:
    return ["policy", *_measures(found)]


def cells(found: PolicyComparison, entrant: Entrant) -> list[str]:
    return [entrant.title, *(measure(entrant) for measure in _measures(found).values())]


def _measures(found: PolicyComparison) -> dict[str, Callable[[Entrant], str]]:
    """The columns. Those about clusters and neighbours exist only if there are some."""

    def figure(form: Callable[[Estimate | None], str], *path: str) -> Callable[[Entrant], str]:
        return lambda entrant: form(found.estimate(entrant, *path))

    several, name = len(found.seeds) > 1, found.headline.name
    if name == "accuracy":
        headline, by_cluster = (_with_range if several else _percent), "accuracy_by_cluster"
    else:
        headline, by_cluster = (_number_with_range if several else _number), "headline_by_cluster"
    columns = {name: figure(headline, *found.headline_path)}
    if len(found.clusters) > 1:
        columns |= {f"cluster {c}": figure(headline, by_cluster, c) for c in found.clusters}
    if len(found.clusters) > 1 and name == "accuracy":
        columns["fair"] = figure(_percent, "fair_accuracy")
    columns |= {own: figure(_number, "metrics", own) for own in found.metrics if own != name}
    if any(found.estimate(entrant, "neighbours", "precision") for entrant in found.ran):
        columns |= {what: figure(_percent, "neighbours", what) for what in ("precision", "recall")}
    columns["models"] = figure(partial(_mean, form=",.0f"), "models_sent")
    columns["MB"] = figure(partial(_mean, form=",.1f", unit=1e6), "bytes_sent")
    columns["CPU s"] = figure(partial(_mean, form=".1f"), "cpu_seconds")
    return columns


def _mean(estimate: Estimate | None, form: str, unit: float = 1.0) -> str:
    return format(estimate.mean / unit, form) if estimate else ""


def _percent(estimate: Estimate | None) -> str:
    return _mean(estimate, ".1f", unit=0.01)


def _number(estimate: Estimate | None) -> str:
    return _mean(estimate, ".4g")


def _number_with_range(estimate: Estimate | None) -> str:
    return f"{estimate.mean:.4g} ({estimate.low:.4g}-{estimate.high:.4g})" if estimate else ""


def _with_range(estimate: Estimate | None) -> str:
    return f"{_percent(estimate)} ({100 * estimate.low:.1f}-{100 * estimate.high:.1f})" if estimate else ""


def knobs(found: PolicyComparison) -> list[str]:
    """The knobs that differ from the defaults, one line for all policies that have the same ones."""
    alike: dict[str, list[str]] = {}
    for entrant in found.ran:
        alike.setdefault(_knobs(entrant), []).append(entrant.title)
    return [f"{', '.join(titles)}: {text}" for text, titles in alike.items() if text]


def _knobs(entrant: Entrant) -> str:
    size = {k: v for k, v in entrant.fit.knobs.items() if k not in entrant.given}
    size |= {"rounds": entrant.fit.rounds} if entrant.fit.rounds else {}
    fitted, given = (" ".join(f"{k}={_value(v)}" for k, v in which.items()) for which in (size, entrant.given))
    return ", ".join(filter(None, (fitted and f"{fitted} (fitted)", given and f"{given} (given)")))


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def failures(found: PolicyComparison) -> list[str]:
    return [f"{title} did not run: {why}" for title, why in found.failures.items()]


# -- files -----------------------------------------------------------------------------------------------------


def markdown(found: PolicyComparison) -> str:
    table = markdown_table([columns(found), *(cells(found, entrant) for entrant in found.ran)])
    notes = [f"- {line}" for line in (*failures(found), *knobs(found))]
    return "\n".join([f"# {title(found)}", "", legend(found), "", table, "", *notes]).rstrip() + "\n"


def as_dict(found: PolicyComparison) -> dict[str, Any]:
    """`settings` are those of all policies; a row has the policy's own."""
    failed = [found.entrant(title) for title in found.failures]
    return {
        "task": found.settings.task.name,
        "nodes": found.nodes,
        "rounds": found.settings.rounds,
        "seeds": list(found.seeds),
        "rows": [_row(found, entrant) for entrant in (*found.ran, *failed)],
        "settings": found.settings.model_dump(mode="json", exclude={"policy"}),
    }


def _row(found: PolicyComparison, entrant: Entrant) -> dict[str, Any]:
    head = {
        "policy": entrant.title,
        "name": entrant.name,
        "rounds": entrant.fit.rounds or found.settings.rounds,
        "knobs": plain(entrant.knobs),
    }
    if entrant.title in found.failures:
        return {**head, "failure": found.failures[entrant.title]}
    figures = {path[-1]: _spread(found.estimate(entrant, *path)) for path in FIGURES}
    clusters = {c: _spread(found.estimate(entrant, "accuracy_by_cluster", c)) for c in found.clusters}
    runs = [{k: v for k, v in run.items() if k not in SHARED} for run in found.runs(entrant)]
    own = {name: _spread(found.estimate(entrant, "metrics", name)) for name in found.metrics}
    metrics = {"metrics": own} if own else {}
    return {**head, **figures, **metrics, "accuracy_by_cluster": clusters, "runs": runs}


def _spread(estimate: Estimate | None) -> dict[str, float] | None:
    return {"mean": estimate.mean, "low": estimate.low, "high": estimate.high} if estimate else None


def write(found: PolicyComparison, folder: Path) -> None:
    write_atomic(folder / "compare.json", json.dumps(as_dict(found), indent=1).encode() + b"\n")
    write_atomic(folder / "compare.md", markdown(found).encode())
