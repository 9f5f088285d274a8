"""Bar plots, and the matrix of received models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise, product
from typing import TYPE_CHECKING, Any

from pfl_node.lab.experiment import Cell
from pfl_node.lab.measures import MEASURES, CellResult, to_paper
from pfl_node.lab.report import phrases
from pfl_node.lab.report.line_plots import cluster_name, seed_note, title_of
from pfl_node.lab.report.plot_data import ExchangeMatrix, exchange_matrix
from pfl_node.lab.report.result import Result
from pfl_node.lab.report.style import BACK, COLUMN, INK, LETTER, Look, Panel, looks, whole_numbers
from pfl_node.lab.results import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FAIRNESS = ("demographic_parity", "equalized_odds", "equalized_odds_sum", "fair_accuracy")
FOUND = ("precision", "recall")


def fairness(record: Result) -> Iterator[Panel]:
    return _bars(record, "fairness", FAIRNESS)


def neighbours(record: Result) -> Iterator[Panel]:
    return _bars(record, "neighbours", FOUND)


def _bars(record: Result, name: str, metrics: Sequence[str]) -> Iterator[Panel]:
    found = record.results
    for metric, point in product(metrics, record.experiment.points):
        known = {run: e for run in record.experiment.runs if (e := found.estimate(run, point, metric))}
        if known:
            papers = {run: f for run in known if (f := found.figure(run, point, metric)) is not None}
            measure = MEASURES[metric].title
            title = title_of(record, phrases.capital(measure), point)
            panel = Panel(phrases.file_name(name, measure, point), title, height=1.15 + 0.24 * len(known))
            _bar(panel.axes, metric, known, papers, looks(record.experiment.runs))
            panel.legend_below(seed_note(record, "bar"))
            yield panel


def _bar(
    axes: Axes, metric: str, known: Mapping[str, Estimate], papers: Mapping[str, float], look: Mapping[str, Look]
) -> None:
    place = {run: i for i, run in enumerate(known)}
    means = [to_paper(metric, e.mean) for e in known.values()]
    axes.barh(list(place.values()), means, height=0.62, color=[look[run].colour for run in known], alpha=0.75)
    dots: dict[str, Any] = {"s": 11, "color": INK, "edgecolors": BACK, "linewidths": 0.5, "zorder": 3}
    seeds = [(to_paper(metric, value), place[run]) for run, e in known.items() for value in e.values]
    axes.scatter([x for x, _ in seeds], [i for _, i in seeds], label="one seed", **dots)
    if papers:
        diamonds: dict[str, Any] = {"s": 26, "marker": "D", "facecolors": BACK, "edgecolors": INK, "linewidths": 1}
        x = [to_paper(metric, figure) for figure in papers.values()]
        axes.scatter(x, [place[run] for run in papers], label="the paper", zorder=4, **diamonds)
    axes.set_yticks(list(place.values()), list(place))
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(left=0, right=102 if MEASURES[metric].unit == "%" else None)
    axes.set_xlabel(_axis(metric))


def _axis(metric: str) -> str:
    way = "higher is better" if MEASURES[metric].better == "higher" else "lower is fairer"
    return f"{phrases.heading(metric)} ({way})"


# -- received models -----------------------------------------------------------------------------------------


def who_from_whom(record: Result) -> Iterator[Panel]:
    """The matrix of the first seed, because nodes differ between seeds."""
    for cell, found in firsts(record):
        if got := exchange_matrix(found, record.folder, cell):
            title = title_of(record, f"Models received: {cell.run}, seed {cell.seed}", cell.point)
            name = phrases.file_name("who-from-whom", cell.run, cell.point)
            panel = Panel(name, title, height=COLUMN * 0.87)
            _heatmap(panel, record, got)
            yield panel


def _heatmap(panel: Panel, record: Result, got: ExchangeMatrix) -> None:
    figure, axes, n = panel.figure, panel.axes, len(got.counts)
    image = axes.imshow(got.counts, cmap="cividis", vmin=0, interpolation="nearest", extent=(0, n, n, 0))
    whole_numbers(figure.colorbar(image, ax=axes, label="models received", shrink=0.85, pad=0.02).ax.yaxis)
    ends = list(accumulate(size for _, size in got.blocks))
    for end in ends[:-1]:
        axes.axhline(end, color="white", linewidth=0.9)
        axes.axvline(end, color="white", linewidth=0.9)
    middles = [end - size / 2 for end, (_, size) in zip(ends, got.blocks, strict=True)]
    names = [_block(record, cluster, size) for cluster, size in got.blocks]
    if _crowded(middles, n, names):
        axes.set_xticks(middles, names, rotation=30, ha="right", rotation_mode="anchor")
        axes.set_yticks(middles, names)
    else:
        axes.set_xticks(middles, names)
        axes.set_yticks(middles, names, rotation=90, va="center")
    axes.tick_params(length=0)
    axes.grid(visible=False)
    axes.set_xlabel("from a node of")
    axes.set_ylabel("a node of")


def _crowded(middles: Sequence[float], nodes: int, names: Sequence[str]) -> bool:
    inches = [(b - a) / nodes * COLUMN * 0.65 for a, b in pairwise(middles)]
    wide = [LETTER * (len(a) + len(b)) / 2 + 0.08 for a, b in pairwise(names)]
    return any(room < need for room, need in zip(inches, wide, strict=True))


def _block(record: Result, cluster: int | None, size: int) -> str:
    return phrases.plural(size, "node") if cluster is None else f"{cluster_name(record, cluster)} ({size})"


def firsts(record: Result) -> Iterator[tuple[Cell, CellResult]]:
    for run, point in product(record.experiment.runs, record.experiment.points):
        for cell in record.results.cells(run, point)[:1]:
            yield cell, record.results.found[cell]
