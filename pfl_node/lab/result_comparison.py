"""Compares two results: the difference of the same cells per seed, and what else differs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pfl_node.errors import ConfigError, nearest
from pfl_node.lab.experiment import Cell
from pfl_node.lab.report import phrases
from pfl_node.lab.report.result import Result, as_text, reopen
from pfl_node.lab.results import Estimate
from pfl_node.lab.results_dir import SPEC

Difference = tuple[str, str, str]  # what, in A, in B
ABSENT = "-"


@dataclass(frozen=True)
class Side:
    name: str
    record: Result
    run: str | None = None

    def cells(self, run: str) -> dict[tuple[str, int], Cell]:
        return {(c.point, c.seed): c for c in self.record.results.found if c.run == run}


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    run: str
    point: str
    metric: str
    a: Estimate
    b: Estimate
    difference: Estimate  # B - A, per seed


@dataclass(frozen=True)
class ResultComparison:
    a: Side
    b: Side
    lines: tuple[ComparisonRow, ...]
    unlike: tuple[Difference, ...]


def side(path: Path) -> Side:
    """A results directory, or `DIR/RUN` with the run's label or directory name."""
    if (path / SPEC).is_file() or not (path.parent / SPEC).is_file():
        return Side(str(path), reopen(path))
    record = reopen(path.parent)
    labels = {cell.folder.partition("/")[0]: cell.run for cell in record.experiment.cells}
    labels |= {run: run for run in record.experiment.runs}
    if path.name not in labels:
        known = nearest(path.name, record.experiment.runs)
        raise ConfigError(f"{path.parent} has no run {path.name!r}; {known}")
    return Side(str(path), record, labels[path.name])


def compare(a: Side, b: Side) -> ResultComparison:
    pairs = list(_pairs(a, b))
    lines = tuple(line for one, other in pairs for line in _lines(a, b, one, other))
    if not lines:
        why = (
            "no run has finished at the same point with the same seed"
            if pairs
            else f"A has {_runs(a)}, B has {_runs(b)}"
        )
        raise ConfigError(f"{a.name} and {b.name} have nothing in common: {why}")
    return ResultComparison(
        a, b, lines, (*_differing(_facts(a.record), _facts(b.record)), *_settings(a, b, pairs))
    )


def _pairs(a: Side, b: Side) -> Iterator[tuple[str, str]]:
    """Two named runs, or else all runs with the same label."""
    if a.run and b.run:
        yield a.run, b.run
        return
    mine, other = ([s.run] if s.run else list(s.record.experiment.runs) for s in (a, b))
    yield from ((run, run) for run in mine if run in other)


def _runs(side: Side) -> str:
    return side.run or ", ".join(side.record.experiment.runs)


def _lines(a: Side, b: Side, one: str, other: str) -> Iterator[ComparisonRow]:
    mine, theirs = a.cells(one), b.cells(other)
    shared = [place for place in mine if place in theirs]
    metrics = dict.fromkeys((*a.record.experiment.metrics, *b.record.experiment.metrics))
    label = one if one == other else f"{one} / {other}"
    for point in dict.fromkeys(point for point, _ in shared):
        cells = [(mine[place], theirs[place]) for place in shared if place[0] == point]
        for metric in metrics:
            found = [(_value(a, metric, x), _value(b, metric, y)) for x, y in cells]
            known = [(x, y) for x, y in found if x is not None and y is not None]
            if known:
                left, right = (Estimate(tuple(values)) for values in zip(*known, strict=True))
                yield ComparisonRow(label, point, metric, left, right, Estimate(tuple(y - x for x, y in known)))


def _value(side: Side, metric: str, cell: Cell) -> float | None:
    return side.record.results.value(cell, metric)


# -- differences -----------------------------------------------------------------------------------------


def _facts(record: Result) -> dict[str, Any]:
    made = record.environments
    own: dict[str, Any] = {"experiment": record.experiment.name, "scale": record.experiment.scale}
    own |= {"backend": record.experiment.backend}
    own |= {"seeds": ", ".join(map(str, record.experiment.seeds))}
    own |= {name: _each(one.get(name) for one in made) for name in ("pfl-node", "commit", "python")}
    packages = dict.fromkeys(name for one in made for name in one.get("packages", {}))
    own |= {name: _each(one.get("packages", {}).get(name) for one in made) for name in packages}
    machines = [one.get("machine", {}) for one in made]
    return own | {name: _each(machine.get(name) for machine in machines) for name in ("cpu", "cores", "system")}


def _each(values: Iterable[Any]) -> Any:
    found = list(dict.fromkeys(values))
    return found[0] if len(found) == 1 else ", ".join(map(_text, found))


def _settings(a: Side, b: Side, pairs: Sequence[tuple[str, str]]) -> Iterator[Difference]:
    """Differences of all pairs come once, without the name of a run."""
    by_run: dict[str, list[Difference]] = {}
    for one, other in pairs:
        mine, theirs = a.cells(one), b.cells(other)
        place = next((place for place in mine if place in theirs), None)
        if place is not None:
            left, right = (
                {"nodes": c.nodes, **s.record.settings(c), **s.record.sources(c)}
                for s, c in ((a, mine[place]), (b, theirs[place]))
            )
            by_run[one] = list(_differing(left, right))
    everywhere = [u for u in next(iter(by_run.values()), []) if all(u in rest for rest in by_run.values())]
    yield from everywhere
    for run, rows in by_run.items():
        yield from ((f"{run}: {what}", x, y) for what, x, y in rows if (what, x, y) not in everywhere)


def _differing(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[Difference]:
    for what in dict.fromkeys((*a, *b)):
        if (x := a.get(what)) != (y := b.get(what)):
            yield what, _text(x), _text(y)


def _text(value: Any) -> str:
    return ABSENT if value is None else as_text(value)


# -- output --------------------------------------------------------------------------------------------


def columns(found: ResultComparison) -> list[str]:
    at = ["at"] if any(line.point for line in found.lines) else []
    return ["run", *at, "measure", "seeds", "A", "B", "B - A"]


def texts(found: ResultComparison) -> list[list[str]]:
    return [
        [
            line.run,
            *([line.point] if any(other.point for other in found.lines) else []),
            phrases.heading(line.metric),
            str(len(line.difference.values)),
            phrases.number(line.metric, line.a.mean),
            phrases.number(line.metric, line.b.mean),
            phrases.change(line.metric, line.difference, phrases.digits(line.metric, line.b.mean)),
        ]
        for line in found.lines
    ]


def as_dict(found: ResultComparison) -> dict[str, Any]:
    return {
        "a": found.a.name,
        "b": found.b.name,
        "rows": [
            {"run": line.run, "point": line.point, "metric": line.metric, "a": line.a.mean, "b": line.b.mean}
            | {"difference": line.difference.mean, "half_width": line.difference.half_width}
            | {"seeds": len(line.difference.values)}
            for line in found.lines
        ],
        "unlike": [{"what": what, "a": a, "b": b} for what, a, b in found.unlike],
    }
