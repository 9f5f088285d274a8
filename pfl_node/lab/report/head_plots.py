"""Plots of heads: which one the nodes choose, round by round and in the end, and the loss of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pfl_node.lab.report import phrases
from pfl_node.lab.report.bar_plots import firsts
from pfl_node.lab.report.line_plots import cluster_name, groups, title_of
from pfl_node.lab.report.plot_data import Choices, choices, head_losses
from pfl_node.lab.report.result import Result
from pfl_node.lab.report.style import FAINT, INK, MARKERS, Panel, whole_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HATCHES = ("", "////", "....", "\\\\\\\\", "xxxx", "||||", "----")


def settlement(record: Result) -> Iterator[Panel]:
    """The choice of heads of the first seed, because the numbering of heads differs between seeds."""
    for cell, found in firsts(record):
        made = {cluster: chosen for cluster in groups(record) if (chosen := choices(found, cluster))}
        look = _shades(sorted({head for chosen in made.values() for head in chosen.heads}))
        for cluster, chosen in made.items():
            of = "all nodes" if cluster is None else cluster_name(record, cluster)
            title = title_of(record, f"Heads of {cell.run}, {of}", cell.point)
            panel = Panel(phrases.file_name("settlement", cell.run, of, cell.point), title)
            _heads(panel.axes, chosen, look)
            panel.legend_below(f"seed {cell.seed}")
            yield panel


def _heads(axes: Axes, made: Choices, look: Mapping[int, tuple[Any, str]]) -> None:
    labels, counts = [f"head {head}" for head in made.heads], list(made.heads.values())
    colours = [look[head][0] for head in made.heads]
    areas = axes.stackplot(
        [r - 1 for r in made.rounds] + [made.rounds[-1]],
        *([*count, count[-1]] for count in counts),
        labels=labels,
        colors=colours,
        step="post",
        edgecolor="white",
        linewidth=0,
    )
    for area, head in zip(areas, made.heads, strict=True):
        area.set_hatch(look[head][1])
    most, begin = max(map(sum, zip(*counts, strict=True))), made.rounds[0] - 1
    axes.set_xlim(0, made.rounds[-1])
    axes.set_ylim(0, most)
    if begin:
        axes.text(begin / 2, most / 2, "one head", rotation=90, ha="center", va="center", color=FAINT)
    whole_numbers(axes.xaxis)
    whole_numbers(axes.yaxis)
    axes.set_xlabel("rounds")
    axes.set_ylabel("nodes")


def _shades(heads: Sequence[int]) -> dict[int, tuple[Any, str]]:
    """A colour and a hatch for each head, distinct from the colours of the runs."""
    from matplotlib import colormaps

    n = max(1, len(heads) - 1)
    return {
        head: (colormaps["viridis"](0.15 + 0.75 * i / n), HATCHES[i % len(HATCHES)])
        for i, head in enumerate(heads)
    }


def losses(record: Result) -> Iterator[Panel]:
    """The losses of the first seed, because the numbering of heads differs between seeds."""
    for cell, found in firsts(record):
        for cluster in groups(record):
            by_head = head_losses(found, cluster)
            if not by_head:
                continue
            of = "all nodes" if cluster is None else cluster_name(record, cluster)
            panel = Panel(
                phrases.file_name("head-losses", cell.run, of, cell.point),
                title_of(record, f"Loss of each head of {cell.run}, {of}", cell.point),
            )
            look = _shades(sorted(by_head))
            for head, series in by_head.items():
                style: dict[str, Any] = {
                    "marker": MARKERS[head % len(MARKERS)],
                    "markevery": -(-len(series) // 12),
                }
                rounds = [round + 1 for round in series]
                panel.axes.plot(rounds, list(series.values()), color=look[head][0], label=f"head {head}", **style)
            whole_numbers(panel.axes.xaxis)
            panel.axes.set_xlabel("rounds")
            panel.axes.set_ylabel("training loss")
            panel.legend_below(f"seed {cell.seed}")
            yield panel


def final_map(record: Result) -> Iterator[Panel]:
    """The final heads of the first seed, because the numbering of heads differs between seeds."""
    for cell, found in firsts(record):
        by_cluster: Mapping[str, Mapping[str, int]] = found.summary.get("heads_by_cluster") or {}
        if not by_cluster:
            continue
        heads = sorted({int(head) for counts in by_cluster.values() for head in counts})
        panel = Panel(
            phrases.file_name("head-map", cell.run, cell.point),
            title_of(record, f"Final heads of {cell.run}, seed {cell.seed}", cell.point),
            height=1.3 + 0.35 * len(by_cluster),
        )
        counts = [[of.get(str(head), 0) for head in heads] for of in by_cluster.values()]
        most = max(map(max, counts))
        panel.axes.imshow(counts, cmap="Blues", vmin=0, vmax=1.5 * most, aspect="auto")
        for row, line in enumerate(counts):
            for column, n in enumerate(line):
                panel.axes.text(column, row, str(n), ha="center", va="center", color=INK)
        panel.axes.set_xticks(range(len(heads)), [f"head {head}" for head in heads])
        panel.axes.set_yticks(range(len(by_cluster)), [cluster_name(record, int(c)) for c in by_cluster])
        panel.axes.tick_params(length=0)
        panel.axes.grid(visible=False)
        yield panel
