"""The data of the plots, from results and journals."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from pfl_node.lab.experiment import Cell
from pfl_node.lab.measures import CellResult, mean_series
from pfl_node.lab.results import Results
from pfl_node.lab.results_dir import JOURNAL, ResultsDir
from pfl_node.sim.outcome import fair_accuracy

Series = Mapping[int, float]  # values by round
WINDOWS = 50  # maximum number of points of a line over rounds


@dataclass(frozen=True, slots=True)
class Band:
    """A line: the mean over the seeds, with the lowest and the highest."""

    x: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    @classmethod
    def of(cls, x: Iterable[float], columns: Sequence[Sequence[float]]) -> Band:
        means, lows = tuple(map(fmean, columns)), tuple(map(min, columns))
        return cls(tuple(x), means, lows, tuple(map(max, columns)))


def band(of_seeds: Sequence[Series], at: Callable[[int], float]) -> Band | None:
    if not of_seeds:
        return None
    rounds = sorted(set.intersection(*(set(series) for series in of_seeds)))
    columns = [[series[r] for series in of_seeds] for r in rounds]
    return Band.of(map(at, rounds), columns) if rounds else None


def over_rounds(founds: Sequence[CellResult], what: str, cluster: int | None = None) -> Band | None:
    return band([s for f in founds if (s := mean_series(f, what, cluster))], lambda r: r + 1)


def over_bytes(founds: Sequence[CellResult], what: str, cluster: int | None = None) -> Band | None:
    """Accuracy by the megabytes that all nodes together had sent; None: none, or not recorded."""
    sent = [{r: n * len(f.nodes) / 1e6 for r, n in mean_series(f, "bytes_sent").items()} for f in founds]
    if not any(any(series.values()) for series in sent):
        return None
    return band([mean_series(f, what, cluster) for f in founds], lambda r: fmean(s[r] for s in sent if r in s))


def own_cluster_over_rounds(founds: Sequence[CellResult]) -> Band | None:
    """The share of merged models that came from the own cluster."""
    return band([s for f in founds if (s := same_cluster(f))], lambda r: r + 1)


def same_cluster(found: CellResult) -> Series:
    cluster = {n["id"]: n["cluster"] for n in found.nodes}
    width = max(1, -(-len(found.series) // WINDOWS))
    shares: dict[int, list[float]] = {}
    for round, rows in found.series.items():
        for node, row in rows.items():
            if senders := row.get("from"):
                right = sum(cluster.get(peer) == cluster[node] for peer in senders)
                shares.setdefault(round // width * width, []).append(right / len(senders))
    return {round: fmean(values) for round, values in sorted(shares.items())}


def clusters(found: Results) -> list[int]:
    """The clusters of all cells; empty if there is only one."""
    known = {n["cluster"] for f in found.found.values() for n in f.nodes if n["cluster"] is not None}
    return sorted(known) if len(known) > 1 else []


# -- received models -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ExchangeMatrix:
    """Models that a node (row) received from a node (column), sorted by cluster."""

    counts: tuple[tuple[int, ...], ...]
    blocks: tuple[tuple[int | None, int], ...]  # clusters in order with their sizes


def exchange_matrix(found: CellResult, folder: ResultsDir, cell: Cell) -> ExchangeMatrix | None:
    """Merged models if the nodes recorded them, accepted ones otherwise; None: there are none."""
    nodes = sorted(found.nodes, key=lambda n: (n["cluster"] is None, n["cluster"] or 0, n["id"]))
    place = {n["id"]: i for i, n in enumerate(nodes)}
    pairs = Counter(_merged(found)) or Counter(_taken(folder, cell))
    counts = [[0] * len(nodes) for _ in nodes]
    for (receiver, sender), n in pairs.items():
        if receiver in place and sender in place:
            counts[place[receiver]][place[sender]] += n
    sizes = Counter(n["cluster"] for n in nodes)
    return ExchangeMatrix(tuple(map(tuple, counts)), tuple(sizes.items())) if any(map(any, counts)) else None


def _merged(found: CellResult) -> Iterator[tuple[str, str]]:
    for rows in found.series.values():
        for node, row in rows.items():
            for sender in row.get("from") or ():
                yield node, sender


def _taken(folder: ResultsDir, cell: Cell) -> Iterator[tuple[str, str]]:
    """Parses only matching lines, because journals are long."""
    with (folder.place(cell) / JOURNAL).open(encoding="utf-8") as lines:
        for line in lines:
            if '"event":"taken"' in line and '"call":"ask"' not in line:
                row: dict[str, Any] = json.loads(line)
                there = row["node"], row["from"]
                yield there[::-1] if row["call"] == "fetch" else there  # the receiver of a fetch sends the model


def fair_over_rounds(founds: Sequence[CellResult]) -> Band | None:
    """The fair accuracy by round; None: there is only one cluster."""
    return band([s for f in founds if (s := fair_series(f))], lambda r: r + 1)


def fair_series(found: CellResult) -> Series:
    of = {cluster: mean_series(found, cluster=cluster) for cluster in found.sizes}
    if len(of) < 2:
        return {}
    rounds = sorted(set.intersection(*(set(series) for series in of.values())))
    return {r: fair for r in rounds if (fair := fair_accuracy({c: s[r] for c, s in of.items()})) is not None}


# -- heads ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Choices:
    rounds: tuple[int, ...]
    heads: Mapping[int, tuple[int, ...]]


def choices(found: CellResult, cluster: int | None) -> Choices | None:
    members = {n["id"] for n in found.nodes if cluster is None or n["cluster"] == cluster}
    counts = {
        round: Counter(row["head"] for node, row in rows.items() if node in members and "head" in row)
        for round, rows in sorted(found.series.items())
    }
    counts = {round: count for round, count in counts.items() if count}
    if not counts:
        return None
    heads = sorted({head for count in counts.values() for head in count})
    return Choices(tuple(r + 1 for r in counts), {h: tuple(count[h] for count in counts.values()) for h in heads})


def head_losses(found: CellResult, cluster: int | None) -> Mapping[int, Series]:
    """The mean loss of each head over the nodes of a cluster; empty: the nodes did not record it."""
    members = {n["id"] for n in found.nodes if cluster is None or n["cluster"] == cluster}
    losses: dict[int, dict[int, float]] = {}
    for round, rows in sorted(found.series.items()):
        by_node = [row["losses"] for node, row in rows.items() if node in members and row.get("losses")]
        for head, values in enumerate(zip(*by_node, strict=True)):
            if known := [value for value in values if value is not None]:  # None: it was not finite
                losses.setdefault(head, {})[round] = fmean(known)
    return losses
