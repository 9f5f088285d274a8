"""Finds the best runs at each point of an experiment, and those that cannot be distinguished from the best."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from pfl_node.lab.measures import MEASURES
from pfl_node.lab.publish.records import RecordedRow, ResultRecord
from pfl_node.lab.results import Estimate


@dataclass(frozen=True)
class Standing:
    """One run at one point, beside the run with the best mean."""

    run: str
    mean: float
    behind: Estimate  # by how much the best run is better than this one, seed by seed

    @property
    def tied(self) -> bool:
        """The 95 % interval of the difference contains zero, or this is the best run."""
        half = self.behind.half_width
        return half is not None and self.behind.mean <= half


def standings(record: ResultRecord, metric: str) -> dict[str, list[Standing]]:
    """The standings by point, best first. Points with one seed are left out: their differences have no
    interval."""
    points = dict.fromkeys(row.point for row in record.rows)
    found = {point: _ranked([row for row in record.rows if row.point == point], metric) for point in points}
    return {point: ranked for point, ranked in found.items() if len(ranked) > 1}


def _ranked(rows: Sequence[RecordedRow], metric: str) -> list[Standing]:
    values = {row.run: row.figures[metric].values for row in rows if metric in row.figures}
    seeds = set.intersection(*(set(v) for v in values.values())) if values else set()
    if len(seeds) < 2:
        return []
    way = 1.0 if MEASURES[metric].better == "higher" else -1.0
    means = {run: Estimate(tuple(v[s] for s in sorted(seeds))).mean for run, v in values.items()}
    best: Mapping[int, float] = values[max(means, key=lambda run: way * means[run])]
    ranked = [
        Standing(run, means[run], Estimate(tuple(way * (best[s] - v[s]) for s in sorted(seeds))))
        for run, v in values.items()
    ]
    return sorted(ranked, key=lambda s: -way * s.mean)


def times_tied(found: Mapping[str, Sequence[Standing]]) -> list[tuple[str, int]]:
    """The number of points at which each run is best or tied, highest first."""
    return Counter(s.run for ranked in found.values() for s in ranked if s.tied).most_common()


def mean_ranks(found: Mapping[str, Sequence[Standing]]) -> list[tuple[str, float]]:
    """The mean rank of each run over the points, best first."""
    ranks: dict[str, list[int]] = {}
    for ranked in found.values():
        for rank, standing in enumerate(ranked, start=1):
            ranks.setdefault(standing.run, []).append(rank)
    return sorted(((run, fmean(all_ranks)) for run, all_ranks in ranks.items()), key=lambda pair: pair[1])
