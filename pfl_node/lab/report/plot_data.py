"""What the plots show, as plain numbers from the results and the journals. Knows nothing of how it is drawn."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from pfl_node.lab.experiment import Cell
from pfl_node.lab.measures import Found, mean_series
from pfl_node.lab.results import Results
from pfl_node.lab.results_dir import JOURNAL, ResultsDir

Series = Mapping[int, float]  # by round
WINDOWS = 50  # at most so many points of a line about every single round


@dataclass(frozen=True, slots=True)
class Band:
    """A line: the mean over the seeds, and the lowest and highest of them."""

    x: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    @classmethod
    def of(cls, x: Iterable[float], columns: Sequence[Sequence[float]]) -> Band:
        """At each x the values of the seeds."""
        means, lows = tuple(map(fmean, columns)), tuple(map(min, columns))
        return cls(tuple(x), means, lows, tuple(map(max, columns)))


def band(of_seeds: Sequence[Series], at: Callable[[int], float]) -> Band | None:
    """Over the rounds that all seeds have."""
    if not of_seeds:
        return None
    rounds = sorted(set.intersection(*(set(series) for series in of_seeds)))
    columns = [[series[r] for series in of_seeds] for r in rounds]
    return Band.of(map(at, rounds), columns) if rounds else None


def over_rounds(founds: Sequence[Found], what: str, cluster: int | None = None) -> Band | None:
    """Of one run. After round 0 one round is done."""
    return band([s for f in founds if (s := mean_series(f, what, cluster))], lambda r: r + 1)


def over_bytes(founds: Sequence[Found], what: str, cluster: int | None = None) -> Band | None:
    """Against the megabytes that all nodes together had sent; None: nothing was sent, or nobody counted."""
    sent = [{r: n * len(f.nodes) / 1e6 for r, n in mean_series(f, "bytes_sent").items()} for f in founds]
    if not any(any(series.values()) for series in sent):
        return None
    return band([mean_series(f, what, cluster) for f in founds], lambda r: fmean(s[r] for s in sent if r in s))


def same_cluster(found: Found) -> Series:
    """Of what the nodes merged, the share that came from their own cluster; by round, in windows."""
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
    """Of all cells; one alone is none."""
    known = {n["cluster"] for f in found.found.values() for n in f.nodes if n["cluster"] is not None}
    return sorted(known) if len(known) > 1 else []


# -- who got from whom -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Exchange:
    """Models that a node (row) got from a node (column), the nodes sorted by cluster."""

    counts: tuple[tuple[int, ...], ...]
    blocks: tuple[tuple[int | None, int], ...]  # the clusters in order, and how many nodes each has


def exchange(found: Found, folder: ResultsDir, cell: Cell) -> Exchange | None:
    """What they merged if they said so, what they took otherwise; None: nothing is known, or nothing was there."""
    nodes = sorted(found.nodes, key=lambda n: (n["cluster"] is None, n["cluster"] or 0, n["id"]))
    place = {n["id"]: i for i, n in enumerate(nodes)}
    pairs = Counter(_merged(found)) or Counter(_taken(folder, cell))
    counts = [[0] * len(nodes) for _ in nodes]
    for (receiver, sender), n in pairs.items():
        if receiver in place and sender in place:
            counts[place[receiver]][place[sender]] += n
    sizes = Counter(n["cluster"] for n in nodes)
    return Exchange(tuple(map(tuple, counts)), tuple(sizes.items())) if any(map(any, counts)) else None


def _merged(found: Found) -> Iterator[tuple[str, str]]:
    for rows in found.series.values():
        for node, row in rows.items():
            for sender in row.get("from") or ():
                yield node, sender


def _taken(folder: ResultsDir, cell: Cell) -> Iterator[tuple[str, str]]:
    """From the messages, of which there are many: a line is read only when it is one of them."""
    with (folder.place(cell) / JOURNAL).open(encoding="utf-8") as lines:
        for line in lines:
            if '"event":"taken"' in line and '"call":"ask"' not in line:
                row: dict[str, Any] = json.loads(line)
                there = row["node"], row["from"]
                yield there[::-1] if row["call"] == "fetch" else there  # who is asked for a model gives one


# -- settlement ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Choices:
    """How many nodes of a cluster were on each head, round by round."""

    rounds: tuple[int, ...]
    heads: Mapping[int, tuple[int, ...]]


def choices(found: Found, cluster: int | None) -> Choices | None:
    members = {n["id"] for n in found.nodes if cluster is None or n["cluster"] == cluster}
    told = {
        round: Counter(row["head"] for node, row in rows.items() if node in members and "head" in row)
        for round, rows in sorted(found.series.items())
    }
    told = {round: count for round, count in told.items() if count}
    if not told:
        return None
    heads = sorted({head for count in told.values() for head in count})
    return Choices(tuple(r + 1 for r in told), {h: tuple(count[h] for count in told.values()) for h in heads})
