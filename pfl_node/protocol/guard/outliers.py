"""Which models are far outside of what peers send, and which of them honest training does not yield. Pure; knows
only vectors.

A model that is far from mine is refused, but that is a difference and no offence: other data make other models.
What counts against a sender is a model that is turned against mine, as even models that have nothing in common
stand at a right angle to each other; and one several times as large as others are. Where a third of the peers send
the like, it is the way of a cluster, and counts against nobody.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, sqrt
from statistics import median
from typing import Any

import numpy as np

from pfl_node.model import Model
from pfl_node.types import PeerId

PEERS = 64  # whose last figures count, those of whom something came last
MAD = 1.4826  # times the median of the deviations is the standard deviation, where chance is normal
SLACK = 0.5  # of the median: what is not further out than that is no outlier, however alike the others are
TURNED = 0.2  # a cosine of less than minus that, and of what chance does
CHANCE = 4.0  # standard deviations of the cosine of two random vectors, which is 1 / sqrt(size)
LARGE = 2.0  # times the largest norm that is not refused: more than a long training or a high rate do
COMPANY = 1 / 3  # of the other peers
BLOCK = 1 << 16


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one model, and beside mine where there is one of its layout."""

    norm: float
    distance: float | None = None
    cosine: float | None = None


@dataclass(frozen=True, slots=True)
class Outlier:
    """What is wrong with a model, and what that counts against its sender."""

    what: str
    figure: float
    usual: float  # the largest that is not refused; of the cosine the smallest
    weight: float = 0.0

    def __str__(self) -> str:
        most = "least" if self.what == COSINE else "most"
        return f"its {self.what} is {self.figure:.3g}, of the other peers' models it is at {most} {self.usual:.3g}"


NORM, DISTANCE, COSINE = "norm", "distance from mine", "cosine with mine"


class TypicalModels:
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
        return (
            self._turned(figures.cosine, [f.cosine for f in others if f.cosine is not None], model.layout.size)
            or self._large(figures.norm, [f.norm for f in others])
            or self._far(figures.distance, [f.distance for f in others if f.distance is not None])
        )

    def _turned(self, cosine: float | None, others: Sequence[float], size: int) -> Outlier | None:
        """It counts as much as it is turned."""
        least = -max(TURNED, CHANCE / sqrt(size))
        if cosine is None or len(others) < self.least or cosine >= least:
            return None
        return Outlier(COSINE, cosine, least, -cosine) if alone([o < least for o in others]) else None

    def _large(self, norm: float, others: Sequence[float]) -> Outlier | None:
        if len(others) < self.least or norm <= (most := bound(others, self.mads)):
            return None
        counts = norm > LARGE * most > 0 and alone([o > most for o in others])
        return Outlier(NORM, norm, most, min(1.0, 0.25 * norm / most) if counts else 0.0)

    def _far(self, distance: float | None, others: Sequence[float]) -> Outlier | None:
        if distance is None or len(others) < self.least or distance <= (most := bound(others, self.mads)):
            return None
        return Outlier(DISTANCE, distance, most)

    def dump(self) -> list[list[Any]]:
        """As JSON has it."""
        return [[part, peer, f.norm, f.distance, f.cosine] for (part, peer), f in self._last.items()]

    def load(self, rows: list[list[Any]]) -> None:
        self._last.clear()
        for part, peer, *figures in rows:
            self._last[part, PeerId(peer)] = Figures(*figures)


def alone(alike: Sequence[bool]) -> bool:
    """Do less than a third of the others send the like?"""
    return sum(alike) < COMPANY * len(alike)


def bound(usual: Sequence[float], mads: float) -> float:
    """The median and so many MADs, at least half of it more. What is not finite counts as large."""
    known = sorted(f if isfinite(f) else 3.4e38 for f in usual)
    middle = median(known)
    return middle + max(mads * MAD * median(abs(f - middle) for f in known), SLACK * middle)


def measure(model: Model, mine: Model | None) -> Figures:
    """In one pass over both, in blocks and in float64."""
    beside = mine is not None and mine.layout.part != "predictions" and mine.layout == model.layout
    square, own, apart, product = 0.0, 0.0, 0.0, 0.0
    for start in range(0, model.vector.size, BLOCK):
        a = model.vector[start : start + BLOCK].astype(np.float64)
        square += float(a @ a)
        if beside and mine is not None:
            b = mine.vector[start : start + BLOCK].astype(np.float64)
            own, product = own + float(b @ b), product + float(a @ b)
            a -= b
            apart += float(a @ a)
    norm = sqrt(square)
    return Figures(norm, sqrt(apart), cosine(product, norm, sqrt(own))) if beside else Figures(norm)


def cosine(product: float, one: float, other: float) -> float:
    """Of the angle between vectors of these norms: 1 the same direction, -1 the opposite; 0 if one has none."""
    return max(-1.0, min(1.0, product / one / other)) if one > 0 and other > 0 else 0.0
