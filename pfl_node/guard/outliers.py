"""Which models are far outside of what peers send. Pure; knows only vectors."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from math import isfinite, sqrt
from statistics import median
from typing import Any

import numpy as np

from pfl_node.model import Model, Vector
from pfl_node.types import PeerId

PEERS = 64  # whose last figures count, those of whom something came last
MAD = 1.4826  # times the median of the deviations is the standard deviation, where chance is normal
SLACK = 0.5  # of the median: what is not further out than that is no outlier, however alike the others are
BLOCK = 1 << 16

Figures = tuple[float, ...]  # the norm, and the distance from mine where there is one


@dataclass(frozen=True, slots=True)
class Outlier:
    """What is wrong with a model."""

    what: str
    figure: float
    most: float

    @property
    def weight(self) -> float:
        """What it counts against its sender: an honest one is sometimes a little outside, none four times."""
        return min(1.0, 0.25 * self.figure / self.most) if self.most > 0 else 1.0

    def __str__(self) -> str:
        return f"its {self.what} is {self.figure:.3g}, of the other peers' models it is at most {self.most:.3g}"


class Usual:
    """The last figures of each peer: one voice for each, however much it sends."""

    def __init__(self, mads: float, least: int) -> None:
        self.mads = mads
        self.least = least
        self._last: OrderedDict[tuple[str, PeerId], Figures] = OrderedDict()

    def judge(self, peer: PeerId, model: Model, mine: Model | None) -> Outlier | None:
        """Compare with what the others sent last, and remember. A bad figure is remembered too: the median of
        the peers withstands it, and where all have changed it must follow."""
        figures, kind = measure(model, mine), model.layout.part
        others = [known for (part, who), known in self._last.items() if part == kind and who != peer]
        self._last[kind, peer] = figures
        self._last.move_to_end((kind, peer))
        if len(self._last) > PEERS:
            self._last.popitem(last=False)
        for place, what in enumerate(("norm", "distance from mine")[: len(figures)]):
            usual = [known[place] for known in others if len(known) > place]
            if len(usual) >= self.least and figures[place] > (most := bound(usual, self.mads)):
                return Outlier(what, figures[place], most)
        return None

    def dump(self) -> list[list[Any]]:
        """As JSON has it."""
        return [[part, peer, *figures] for (part, peer), figures in self._last.items()]

    def load(self, rows: list[list[Any]]) -> None:
        self._last.clear()
        for part, peer, *figures in rows:
            self._last[part, PeerId(peer)] = tuple(figures)


def bound(usual: list[float], mads: float) -> float:
    """The median and so many MADs, at least half of it more. What is not finite counts as large."""
    known = sorted(f if isfinite(f) else 3.4e38 for f in usual)
    middle = median(known)
    return middle + max(mads * MAD * median(abs(f - middle) for f in known), SLACK * middle)


def measure(model: Model, mine: Model | None) -> Figures:
    norm = length(model.vector)
    if mine is None or mine.layout.part == "predictions" or mine.layout != model.layout:
        return (norm,)
    return norm, length(model.vector, mine.vector)


def length(vector: Vector, other: Vector | None = None) -> float:
    """The L2 norm of a vector or of a difference, in blocks and in float64."""
    total = 0.0
    for start in range(0, vector.size, BLOCK):
        part = vector[start : start + BLOCK].astype(np.float64)
        if other is not None:
            part -= other[start : start + BLOCK]
        total += float(part @ part)
    return sqrt(total)
