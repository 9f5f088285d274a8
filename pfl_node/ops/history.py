"""Figures of a node by round, in a bounded number of points, which are farther apart the more rounds there are."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import Any

from pfl_node.jsonable import json_object

POINTS = 256
FIGURE = re.compile(
    r"(val|test)_[A-Za-z]\w{0,40}|bytes_sent|bytes_received"
)  # the task may have metrics of its own
MOST = 32  # figures of a point
TAIL = 8 << 20  # bytes of the journal that are read


@dataclass(frozen=True, slots=True)
class HistoryPoint:
    """Evaluation after a round, and the bytes transferred so far. Time is in seconds since 1970."""

    round: int
    time: float
    figures: Mapping[str, float]

    def plain(self) -> dict[str, Any]:
        return {"round": self.round, "time": round(self.time, 3), **self.figures}


class History:
    """The points so far, oldest first."""

    def __init__(self, points: int = POINTS) -> None:
        self._limit = points
        self._step = 1  # rounds between points
        self._points: list[HistoryPoint] = []
        self._newest: HistoryPoint | None = None  # the last one; it may lie between two points

    def add(self, row: Mapping[str, Any], time: float) -> None:
        """Add a round of the journal, if it has figures."""
        if (point := _point(row, time)) is None:
            return
        self._newest = point
        if self._points and point.round <= self._points[-1].round:  # the node restarted from a checkpoint
            self._points = [p for p in self._points if p.round < point.round]
        if self._points and point.round < self._points[-1].round + self._step:
            return
        self._points.append(point)
        if len(self._points) > self._limit:
            self._points = self._points[::2]
            self._step *= 2

    def since(self, round: int = -1) -> list[HistoryPoint]:
        found = [p for p in self._points if p.round > round]
        last = self._newest
        return [*found, last] if last and last.round > max(round, self._points[-1].round) else found

    def read(self, journal: Path) -> None:
        """Load the journal of an earlier process of the node, without damaged lines."""
        for line in tail(journal, TAIL):
            row = json_object(line)
            if row.get("event") == "round" and isinstance(row.get("time"), int | float):
                self.add(row, float(row["time"]))


def thinned(points: list[HistoryPoint]) -> list[HistoryPoint]:
    """Drop every other point, but never the last, while there are too many: a peer may report any number of
    them."""
    while len(points) > 2 * POINTS:
        points = points[-1::-2][::-1]
    return points


def tail(path: Path, limit: int) -> Iterable[bytes]:
    """The last complete lines of a file, within `limit` bytes; nothing if it cannot be read."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - limit))
            lines = file.read().splitlines()
    except OSError:
        return []
    return lines[1:] if size > limit else lines


def _point(row: Mapping[str, Any], time: float) -> HistoryPoint | None:
    round = row.get("round")
    known = figures_of(row)
    return HistoryPoint(round, time, known) if isinstance(round, int) and known else None


def figures_of(row: Mapping[str, Any]) -> dict[str, float]:
    """The finite figures of a round."""
    numbers = ((name, value) for name, value in row.items() if isinstance(value, int | float) and isfinite(value))
    return dict(islice(((name, value) for name, value in numbers if FIGURE.fullmatch(name)), MOST))
