"""Tables of a comparison at several points: one for each metric, with a row for each run and a column for each
point."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from pfl_node.lab.measures import COUNTED, MEASURES
from pfl_node.lab.publish.records import RecordedRow, ResultRecord
from pfl_node.lab.publish.standings import standings
from pfl_node.lab.report import phrases
from pfl_node.lab.report.result_table import markdown_table
from pfl_node.lab.results import Estimate

QUALITY = ("%", COUNTED)  # the units of the metrics with a table of their own; the others are costs

Figures = Mapping[str, Estimate]  # by point


def suits(record: ResultRecord) -> bool:
    """Several points, one size, and no figures of a paper."""
    figures = [figure for row in record.rows for figure in row.figures.values()]
    sizes = {(row.nodes, row.rounds, *row.differences) for row in record.rows}
    points = {row.point for row in record.rows}
    return len(points) > 1 and len(sizes) == 1 and all(figure.paper is None for figure in figures)


def pivot_tables(record: ResultRecord) -> Iterator[tuple[str, str]]:
    """Heading and table of each metric. The best runs at a point, and those tied with the best, are bold."""
    shares = [metric for metric in record.metrics if MEASURES[metric].unit in QUALITY]
    costs = [metric for metric in record.metrics if metric not in shares]
    first = _by_run(record, shares[0]) if shares else {}
    for metric in shares:
        found = _by_run(record, metric)
        points = [point for point in _points(record) if metric == shares[0] or _differs(found, first, point)]
        if points:
            yield phrases.heading(metric), _table(record, metric, points, costs if metric == shares[0] else ())


def _differs(one: Mapping[str, Figures], other: Mapping[str, Figures], point: str) -> bool:
    """False: the metric says the same as the other, such as the minority where all nodes are in one cluster."""
    return any(one[run].get(point) != other[run].get(point) for run in one)


def _table(record: ResultRecord, metric: str, points: Sequence[str], costs: Sequence[str]) -> str:
    tied = {point: {s.run for s in ranked if s.tied} for point, ranked in standings(record, metric).items()}
    spent = {cost: _by_run(record, cost) for cost in costs}
    rows = [["run", *points, *map(phrases.heading, costs)]]
    for run, found in _by_run(record, metric).items():
        cells = [_cell(metric, found.get(point), bold=run in tied.get(point, ())) for point in points]
        rows.append([run, *cells, *(_mean(cost, spent[cost][run]) for cost in costs)])
    return markdown_table(rows)


def _cell(metric: str, found: Estimate | None, *, bold: bool) -> str:
    text = phrases.spread(metric, found)
    return f"**{text}**" if bold else text


def _mean(metric: str, found: Figures) -> str:
    """The mean over the points."""
    return phrases.number(metric, fmean(e.mean for e in found.values())) if found else phrases.NOTHING


def _points(record: ResultRecord) -> list[str]:
    return list(dict.fromkeys(row.point for row in record.rows))


def _by_run(record: ResultRecord, metric: str) -> dict[str, dict[str, Estimate]]:
    found: dict[str, dict[str, Estimate]] = {row.run: {} for row in record.rows}
    for row in record.rows:
        if estimate := _estimate(row, metric):
            found[row.run][row.point] = estimate
    return found


def _estimate(row: RecordedRow, metric: str) -> Estimate | None:
    figure = row.figures.get(metric)
    return Estimate.of(figure.values.values()) if figure else None
