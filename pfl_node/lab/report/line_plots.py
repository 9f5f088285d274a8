"""Plots with a line for each run: over rounds, bytes, or the points of a sweep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

from pfl_node.lab.measures import MEASURES, CellResult, to_paper
from pfl_node.lab.report import phrases
from pfl_node.lab.report.plot_data import (
    Band,
    clusters,
    fair_over_rounds,
    over_bytes,
    over_rounds,
    own_cluster_over_rounds,
)
from pfl_node.lab.report.result import Result
from pfl_node.lab.report.style import FAINT, INK, Panel, looks, name_ticks, whole_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Bands = dict[str, Band]  # bands by run
DENSE = 25  # maximum number of markers on a line
HOLLOW: dict[str, Any] = {"marker": "o", "markerfacecolor": "none", "markersize": 6, "linestyle": "none"}


def accuracy(record: Result) -> Iterator[Panel]:
    """A panel for each cluster and point, all with the same y-axis."""
    return _per_cluster(record, "accuracy", "Accuracy", "rounds")


def accuracy_over_bytes(record: Result) -> Iterator[Panel]:
    return _per_cluster(record, "accuracy-over-bytes", "Accuracy over bytes", "bytes")


def _per_cluster(record: Result, name: str, title: str, over: str) -> Iterator[Panel]:
    of = over_rounds if over == "rounds" else over_bytes
    figure_name = record.results.headline.name
    share = figure_name == "accuracy"
    drawn: dict[tuple[str, int | None], Bands] = {}
    for point, cluster in product(record.experiment.points, groups(record)):
        if bands := _bands(record, point, partial(of, what=f"test_{figure_name}", cluster=cluster)):
            drawn[point, cluster] = bands
    top = max((max(b.high) for bands in drawn.values() for b in bands.values()), default=1.0)
    low = min((min(b.low) for bands in drawn.values() for b in bands.values()), default=0.0)
    for (point, cluster), bands in drawn.items():
        where = "" if cluster is None else cluster_name(record, cluster)
        named = title if share else title.replace("Accuracy", phrases.capital(figure_name))
        whole = title_of(record, ", ".join(filter(None, (named, where))), point)
        panel = Panel(phrases.file_name(name, point, where), whole)
        _lines(panel.axes, record, bands, unit=100 if share else 1)
        pad = max(0.02, (top - low) * 0.05)
        if share:
            panel.axes.set_ylim(100 * max(0.0, low - pad), 100 * min(1.0, top + pad))
            _target(panel.axes, record, (low - pad, top + pad))
        panel.axes.set_ylabel("test accuracy, %" if share else f"test {figure_name}")
        _axis(panel.axes, over, max(b.x[-1] for b in bands.values()))
        panel.legend_below(seed_note(record, "line", "band"))
        yield panel


def _bands(record: Result, point: str, of: Callable[[list[CellResult]], Band | None]) -> Bands:
    """The bands of the runs that have data at the point."""
    results = record.results
    found = {run: of(results.founds(run, point)) for run in record.experiment.runs}
    return {run: band for run, band in found.items() if band}


def _target(axes: Axes, record: Result, shown: tuple[float, float]) -> None:
    target = record.experiment.target
    if target is not None and shown[0] < target < shown[1]:
        axes.axhline(
            100 * target, color=FAINT, linewidth=0.9, linestyle=(0, (4, 3)), label=f"target, {100 * target:g} %"
        )


def seed_note(record: Result, line: str, band: str = "") -> str:
    """Explains lines and bands inside the figure, for use outside the page."""
    done = Counter((cell.run, cell.point) for cell in record.results.found)
    counts = set(done.values())
    if counts == {1}:
        return "one seed"
    many = f"{counts.pop()} seeds" if len(counts) == 1 else "the finished seeds"
    return f"{line}: mean of {many}" + (f"; {band}: lowest to highest" if band else "")


def _axis(axes: Axes, over: str, end: float) -> None:
    if over == "rounds":
        axes.set_xlabel("rounds")
        whole_numbers(axes.xaxis)
    elif end > 2000:
        axes.xaxis.set_major_formatter(lambda x, _: f"{x / 1000:g}")
        axes.set_xlabel("sent by all nodes, GB")
    else:
        axes.set_xlabel("sent by all nodes, MB")
    axes.set_xlim(left=0)


def precision(record: Result) -> Iterator[Panel]:
    """Precision over rounds, for runs whose nodes record what they merge."""
    for point in record.experiment.points if clusters(record.results) else ():
        if bands := _bands(record, point, own_cluster_over_rounds):
            title = title_of(record, "Precision over rounds", point)
            panel = Panel(phrases.file_name("precision-over-rounds", point), title)
            _lines(panel.axes, record, bands)
            panel.axes.set_ylim(0, 102)
            panel.axes.set_ylabel("merged from own cluster, %")
            _axis(panel.axes, "rounds", 0)
            panel.legend_below(seed_note(record, "line", "band"))
            yield panel


def fair_accuracy(record: Result) -> Iterator[Panel]:
    for point in record.experiment.points:
        if bands := _bands(record, point, fair_over_rounds):
            panel = Panel(
                phrases.file_name("fair-accuracy", point), title_of(record, "Fair accuracy over rounds", point)
            )
            _lines(panel.axes, record, bands)
            panel.axes.set_ylabel("fair accuracy, %")
            _axis(panel.axes, "rounds", 0)
            panel.legend_below(seed_note(record, "line", "band"))
            yield panel


def sweep(record: Result) -> Iterator[Panel]:
    experiment = record.experiment
    for metric in experiment.metrics if len(experiment.points) > 1 else ():
        title = MEASURES[metric].title
        panel = Panel(phrases.file_name("sweep", title), phrases.capital(title))
        axes = panel.axes
        for run in experiment.runs:
            _over_points(axes, record, run, metric)
        if axes.lines:
            name_ticks(axes.xaxis, experiment.points)
            axes.set_xlim(-0.2, len(experiment.points) - 0.8)
            axes.set_ylabel(phrases.heading(metric))
            if any(f.metric == metric for f in experiment.figures):
                axes.plot([], [], label="the paper", color=INK, **HOLLOW)
            panel.legend_below(seed_note(record, "line", "band"))
            yield panel


def _over_points(axes: Axes, record: Result, run: str, metric: str) -> None:
    found, points = record.results, list(enumerate(record.experiment.points))
    ours = {i: e for i, point in points if (e := found.estimate(run, point, metric))}
    if ours:
        columns = [[to_paper(metric, value) for value in e.values] for e in ours.values()]
        _line(axes, record, run, Band.of(map(float, ours), columns))
    papers = {i: f for i, point in points if (f := found.figure(run, point, metric)) is not None}
    look = looks(record.experiment.runs)[run]
    hollow = HOLLOW | {"marker": look.marker}
    axes.plot(list(papers), [to_paper(metric, f) for f in papers.values()], color=look.colour, **hollow)


def _line(axes: Axes, record: Result, run: str, one: Band) -> None:
    look = looks(record.experiment.runs)[run]
    every = -(-len(one.x) // DENSE)
    style: dict[str, Any] = {"linestyle": look.dash, "marker": look.marker, "markevery": every}
    axes.plot(one.x, one.mean, color=look.colour, label=run, **style)
    if one.low != one.high:
        axes.fill_between(one.x, one.low, one.high, color=look.colour, alpha=0.15, linewidth=0)


def _lines(axes: Axes, record: Result, bands: Bands, unit: float = 100) -> None:
    """Draw lines, in per cent unless another unit is given."""
    for run, one in bands.items():
        mean, low, high = (tuple(unit * y for y in ys) for ys in (one.mean, one.low, one.high))
        _line(axes, record, run, Band(one.x, mean, low, high))


def groups(record: Result) -> list[int | None]:
    """The clusters, or None for all nodes if there are none."""
    return [*clusters(record.results)] or [None]


def cluster_name(record: Result, cluster: int) -> str:
    return record.experiment.clusters.get(cluster, f"cluster {cluster}")


def title_of(record: Result, title: str, point: str) -> str:
    return f"{title}, {point}" if len(record.experiment.points) > 1 else title
