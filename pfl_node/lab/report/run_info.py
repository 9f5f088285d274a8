"""How a result was produced: command, scale, seeds, versions, machine, time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pfl_node.lab.report import phrases
from pfl_node.lab.report.result import Result

COMMAND = "Repeat it"


def facts(record: Result) -> Iterator[tuple[str, str]]:
    experiment, made = record.experiment, record.environments
    done, planned = len(record.results.found), len(experiment.cells)
    sizes = dict.fromkeys(f"{c.nodes} nodes, {c.settings.rounds} rounds" for c in experiment.cells)
    yield COMMAND, record.command
    yield "Scale", f"{experiment.scale}: {', '.join(sizes)}"
    yield "Backend", phrases.backend(record.results)
    yield "Seeds", ", ".join(map(str, experiment.seeds))
    yield "Runs", f"{done} of {planned} done"
    if begun := sorted(when for one in made if (when := one.get("begun"))):
        yield "Begun", " to ".join(dict.fromkeys(map(_when, (begun[0], begun[-1]))))
    yield (
        "pfl-node",
        _each(f"{one.get('pfl-node', 'unknown')}, commit {_commit(one.get('commit'))}" for one in made),
    )
    yield "Versions", _each(map(_versions, made))
    yield "Machine", _each(map(_machine, made))
    wall, spent = (phrases.duration(record.seconds(what)) for what in ("wall", "cpu"))
    yield "Time", f"{wall} of wall time, {spent} of CPU time, sum of all runs"


def _each(texts: Iterable[str]) -> str:
    counted = Counter(texts)
    if len(counted) == 1:
        return next(iter(counted))
    return "; ".join(f"{text} ({phrases.plural(n, 'run')})" for text, n in counted.items())


def _when(text: str) -> str:
    """2026-01-31T12:34:56+00:00 to the minute."""
    return f"{text[:10]} {text[11:16]} UTC"


def _commit(commit: str | None) -> str:
    if not commit:
        return "unknown"
    return f"{commit[:-1]} with uncommitted changes" if commit.endswith("+") else commit


def _versions(made: Mapping[str, Any]) -> str:
    found = {"Python": made.get("python"), **made.get("packages", {})}
    return ", ".join(f"{name} {version}" for name, version in found.items() if version)


def _machine(made: Mapping[str, Any]) -> str:
    machine = made.get("machine", {})
    return f"{machine.get('cpu') or 'unknown CPU'}, {machine.get('cores', '?')} cores, {machine.get('system', '')}"
