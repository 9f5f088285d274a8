"""Plots with a line for each run: over rounds, bytes, or the points of a sweep."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from pfl_node.lab.measures import MEASURES, Found, to_paper
from pfl_node.lab.report import phrases
from pfl_node.lab.report.plot_data import Band, band, clusters, over_bytes, over_rounds, same_cluster
from pfl_node.lab.report.result import Result
from pfl_node.lab.report.style import FAINT, INK, Panel, canvas, legend_below, looks, name_ticks, whole_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Bands = dict[str, Band]  # by run
DENSE = 25  # the most markers on a line
HOLLOW: dict[str, Any] = {"marker": "o", "markerfacecolor": "none", "markersize": 6, "linestyle": "none"}


def accuracy(record: Result) -> list[Panel]:
    """A panel for each cluster and point, all with the same y-axis."""
    return _per_cluster(record, "accuracy", "Accuracy", "rounds")


def accuracy_over_bytes(record: Result) -> list[Panel]:
    return _per_cluster(record, "accuracy-over-bytes", "Accuracy over bytes", "bytes")


def _per_cluster(record: Result, name: str, title: str, over: str) -> list[Panel]:
    of = over_rounds if over == "rounds" else over_bytes
    drawn: dict[tuple[str, int | None], Bands] = {}
    for point in record.experiment.points:
        for cluster in groups(record):
            found = {
                run: of(founds(record, run, point), "test_accuracy", cluster) for run in record.experiment.runs
            }
            if bands := {run: one for run, one in found.items() if one}:
                drawn[point, cluster] = bands
    top = max((max(b.high) for bands in drawn.values() for b in bands.values()), default=1.0)
    low = min((min(b.low) for bands in drawn.values() for b in bands.values()), default=0.0)
    panels = []
    for (point, cluster), bands in drawn.items():
        where = "" if cluster is None else cluster_name(record, cluster)
        whole = title_of(record, ", ".join(filter(None, (title, where))), point)
        figure, axes = canvas(whole)
        _lines(axes, record, bands)
        pad = max(0.02, (top - low) * 0.05)
        axes.set_ylim(100 * max(0.0, low - pad), 100 * min(1.0, top + pad))
        axes.set_ylabel("test accuracy, %")
        _axis(axes, over, max(b.x[-1] for b in bands.values()))
        _target(axes, record, (low - pad, top + pad))
        legend_below(figure, axes, seed_note(record, "line", "band"))
        panels.append(Panel(phrases.file_name(name, point, where), whole, figure))
    return panels


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


def precision(record: Result) -> list[Panel]:
    """Of runs whose nodes record what they merge."""
    panels = []
    for point in record.experiment.points if clusters(record.results) else ():
        found = {run: _same(founds(record, run, point)) for run in record.experiment.runs}
        bands = {run: one for run, one in found.items() if one}
        if bands:
            title = title_of(record, "Precision over rounds", point)
            figure, axes = canvas(title)
            _lines(axes, record, bands)
            axes.set_ylim(0, 102)
            axes.set_ylabel("merged from own cluster, %")
            _axis(axes, "rounds", 0)
            legend_below(figure, axes, seed_note(record, "line", "band"))
            panels.append(Panel(phrases.file_name("precision-over-rounds", point), title, figure))
    return panels


def _same(of_run: list[Found]) -> Band | None:
    return band([s for f in of_run if (s := same_cluster(f))], lambda r: r + 1)


def sweep(record: Result) -> list[Panel]:
    experiment, panels = record.experiment, []
    for metric in experiment.metrics if len(experiment.points) > 1 else ():
        title = phrases.capital(MEASURES[metric].title)
        figure, axes = canvas(title)
        for run in experiment.runs:
            _over_points(axes, record, run, metric)
        if axes.lines:
            name_ticks(axes.xaxis, experiment.points)
            axes.set_xlim(-0.2, len(experiment.points) - 0.8)
            axes.set_ylabel(phrases.heading(metric))
            if any(f.metric == metric for f in experiment.figures):
                axes.plot([], [], label="the paper", color=INK, **HOLLOW)
            legend_below(figure, axes, seed_note(record, "line", "band"))
            panels.append(Panel(phrases.file_name("sweep", MEASURES[metric].title), title, figure))
    return panels


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


def _lines(axes: Axes, record: Result, bands: Bands) -> None:
    """In per cent."""
    for run, one in bands.items():
        mean, low, high = (tuple(100 * y for y in ys) for ys in (one.mean, one.low, one.high))
        _line(axes, record, run, Band(one.x, mean, low, high))


def founds(record: Result, run: str, point: str) -> list[Found]:
    return [record.results.found[cell] for cell in record.results.cells(run, point)]


def groups(record: Result) -> list[int | None]:
    """The clusters, or None for all nodes if there are none."""
    return [*clusters(record.results)] or [None]


def cluster_name(record: Result, cluster: int) -> str:
    return record.experiment.clusters.get(cluster, f"cluster {cluster}")


def title_of(record: Result, title: str, point: str) -> str:
    return f"{title}, {point}" if len(record.experiment.points) > 1 else title
