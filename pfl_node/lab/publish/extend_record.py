"""Adds the runs of a result to a record of the same experiment, which may come from another machine or an earlier
commit. A run that both have must have the same journal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pfl_node.errors import ConfigError
from pfl_node.lab.publish.records import RecordedClaim, RecordedFigure, RecordedRow, ResultRecord

SAME = ("experiment", "title", "scale", "backend")
ELSEWHERE = "record it under another --name"
AND = " and "  # between versions

Figures = Mapping[str, RecordedFigure]


def extended(old: ResultRecord, new: ResultRecord) -> ResultRecord:
    """The runs of both, with the columns and claims of the new one, whose spec may have been extended."""
    _check(old, new)
    rows = [_joined(_rows(old).get((row.run, row.point)), row) for row in new.rows]
    figures = {(row.run, row.point): row.figures for row in rows}
    before = {(claim.claim, claim.point): claim for claim in old.claims}
    journals = {**old.journals, **new.journals}
    return replace(
        new,
        seeds=sorted({*old.seeds, *new.seeds}),
        command=max(old, new, key=lambda record: len(record.seeds)).command,
        commits=sorted({*old.commits, *new.commits}),
        versions=_versions(old.versions, new.versions),
        rows=rows,
        claims=[_judged(claim, before.get((claim.claim, claim.point)), figures) for claim in new.claims],
        journals=journals,
        missing=sorted({*old.missing, *new.missing} - journals.keys()),
        notes=list(dict.fromkeys([*old.notes, *new.notes])),
        cpu_seconds=old.cpu_seconds + new.cpu_seconds - _repeated(old, new),
    )


def _check(old: ResultRecord, new: ResultRecord) -> None:
    for what in SAME:
        if getattr(old, what) != getattr(new, what):
            raise ConfigError(
                f"{old.name} is a record of {what} {getattr(old, what)!r}, "
                f"but this is {getattr(new, what)!r}: {ELSEWHERE}"
            )
    if not old.journals:
        raise ConfigError(f"{old.name} has no digests of its journals, so nothing can be added to it: {ELSEWHERE}")
    if gone := _rows(old).keys() - _rows(new).keys():
        raise ConfigError(f"{old.name} has {_named(*min(gone))}, which the spec no longer has: {ELSEWHERE}")
    for folder in sorted(old.journals.keys() & new.journals.keys()):
        if old.journals[folder] != new.journals[folder]:
            raise ConfigError(
                f"{folder} has another journal than in {old.name}, of commit {', '.join(old.commits)}: "
                f"the results of this run have changed since, so {ELSEWHERE}"
            )
    for place, row in _rows(new).items():
        known = _rows(old).get(place)
        if known and _has_values(known) and _has_values(row) and _size(known) != _size(row):
            raise ConfigError(
                f"{_named(*place)} has {_size(row)}, but in {old.name} it has {_size(known)}: {ELSEWHERE}"
            )


def _rows(record: ResultRecord) -> dict[tuple[str, str], RecordedRow]:
    return {(row.run, row.point): row for row in record.rows}


def _named(run: str, point: str) -> str:
    return f"{run} at {point}" if point else run


def _size(row: RecordedRow) -> str:
    return "; ".join([f"{row.nodes} nodes, {row.rounds} rounds", *row.differences])


def _joined(old: RecordedRow | None, new: RecordedRow) -> RecordedRow:
    if old is None or not _has_values(old):
        return new
    known = {metric: figure.values for metric, figure in old.figures.items()}
    found = {metric: figure.values for metric, figure in new.figures.items()}
    papers = {metric: figure.paper for metric, figure in {**old.figures, **new.figures}.items()}
    figures = {
        metric: RecordedFigure(dict(sorted({**known.get(metric, {}), **found.get(metric, {})}.items())), paper)
        for metric, paper in papers.items()
    }
    return replace(new if _has_values(new) else old, figures=figures)


def _has_values(row: RecordedRow) -> bool:
    return any(figure.values for figure in row.figures.values())


def _judged(
    new: RecordedClaim, old: RecordedClaim | None, figures: Mapping[tuple[str, str], Figures]
) -> RecordedClaim:
    """One record may have the higher run of a seed and the other one the lower."""
    claim, known = new.claim, dict(old.differences) if old else {}
    high, low = (figures.get((run, new.point), {}).get(claim.metric) for run in (claim.higher, claim.lower))
    if high and low:
        known |= {seed: value - low.values[seed] for seed, value in high.values.items() if seed in low.values}
    differences = dict(sorted({**known, **new.differences}.items()))
    at_least, at_most = (bool(getattr(old, name, False)) for name in ("at_least", "at_most"))
    return replace(new, differences=differences, at_least=new.at_least or at_least, at_most=new.at_most or at_most)


def _versions(old: Mapping[str, str], new: Mapping[str, str]) -> dict[str, str]:
    """A version may already be several, joined by an earlier addition."""
    both = {name: [part for v in (old, new) for part in _parts(v, name)] for name in {**old, **new}}
    return {name: AND.join(dict.fromkeys(found)) for name, found in both.items()}


def _parts(versions: Mapping[str, str], name: str) -> list[str]:
    return versions[name].split(AND) if name in versions else []


def _repeated(old: ResultRecord, new: ResultRecord) -> float:
    """CPU seconds of the runs that both have, if the CPU time is a column."""
    known = _rows(old)
    return sum(
        seconds
        for place, row in _rows(new).items()
        if place in known and "cpu" in row.figures and "cpu" in known[place].figures
        for seed, seconds in row.figures["cpu"].values.items()
        if seed in known[place].figures["cpu"].values
    )
