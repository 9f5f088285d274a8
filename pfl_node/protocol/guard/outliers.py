"""Finds models that are far from those of other peers, and those that honest training does not produce. Pure.

A model that is far from mine is refused without a penalty, because other data give other models. A sender is
penalised for a model that points away from mine, because even unrelated models are orthogonal, and for one several
times as large as those of others. If a third of the peers send similar models, they are a cluster, and none is
penalised.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite, sqrt
from statistics import median
from typing import Any

import numpy as np

from pfl_node.model import Model, PartialModel, Vector
from pfl_node.types import PeerId

PEERS = 64  # peers whose last figures of a part or vector count, the most recently heard
MAD = 1.4826  # factor from median deviation to standard deviation of a normal distribution
SLACK = 0.5  # smallest distance of an outlier from the median, as a share of the median
TURNED = 0.2  # a cosine below -TURNED, and below the random fluctuation, points away
CHANCE = 4.0  # standard deviations of the cosine of two random vectors, each 1 / sqrt(size)
LARGE = 2.0  # multiple of the largest accepted norm; long training or a high learning rate stay below
CLUSTER = 1 / 3  # share of the other peers; a larger group is a cluster
BLOCK = 1 << 16


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of a model, and of its relation to mine if the layouts are equal."""

    norm: float
    distance: float | None = None
    cosine: float | None = None


@dataclass(frozen=True, slots=True)
class Outlier:
    """Why a model is refused, and the penalty of its sender."""

    what: str
    figure: float
    usual: float  # the largest accepted value; for the cosine, the smallest
    weight: float = 0.0

    def __str__(self) -> str:
        most = "least" if self.what == COSINE else "most"
        return f"its {self.what} is {self.figure:.3g}, the other peers' models have at {most} {self.usual:.3g}"


NORM, DISTANCE, COSINE = "norm", "distance from mine", "cosine with mine"


class TypicalModels:
    """The last figures of each peer: each peer counts once, however much it sends."""

    def __init__(self, mads: float, least: int) -> None:
        self.mads = mads
        self.least = least
        self._last: OrderedDict[tuple[str, PeerId], Figures] = OrderedDict()

    def judge(self, peer: PeerId, model: Model, mine: Model | None, name: str = "") -> Outlier | None:
        """Compare with what the others sent last (the same part, or the vector of this name), and store the
        figures. Bad figures are stored too: the median tolerates them, and must follow if all peers change."""
        figures, kind = measure(model, mine), name or model.layout.part
        others = [known for (part, who), known in self._last.items() if part == kind and who != peer]
        self._last[kind, peer] = figures
        self._last.move_to_end((kind, peer))
        if len(others) >= PEERS:
            del self._last[next(known for known in self._last if known[0] == kind)]
        return (
            self._turned(figures.cosine, [f.cosine for f in others if f.cosine is not None], model.numbers.size)
            or self._large(figures.norm, [f.norm for f in others])
            or self._far(figures.distance, [f.distance for f in others if f.distance is not None])
        )

    def _turned(self, cosine: float | None, others: Sequence[float], size: int) -> Outlier | None:
        least = -max(TURNED, CHANCE / sqrt(max(1, size)))
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
        return [[part, peer, f.norm, f.distance, f.cosine] for (part, peer), f in self._last.items()]

    def load(self, rows: list[list[Any]]) -> None:
        self._last.clear()
        for part, peer, *figures in rows:
            self._last[part, PeerId(peer)] = Figures(*figures)


def alone(alike: Sequence[bool]) -> bool:
    """Whether fewer than a third of the others send similar models."""
    return sum(alike) < CLUSTER * len(alike)


def bound(usual: Sequence[float], mads: float) -> float:
    """The median plus `mads` MADs, at least one and a half medians. Infinite values count as large."""
    known = sorted(f if isfinite(f) else 3.4e38 for f in usual)
    middle = median(known)
    return middle + max(mads * MAD * median(abs(f - middle) for f in known), SLACK * middle)


def measure(model: Model, mine: Model | None) -> Figures:
    """The figures of a model, computed in one pass over both vectors, in blocks and in float64. A partial model is
    completed with my numbers, which is how it is used; but its direction is that of the numbers that were sent."""
    beside = mine is not None and mine.layout.part != "predictions" and mine.layout == model.layout
    known = mine.vector if beside and mine is not None else None
    places = model.indices if isinstance(model, PartialModel) else None
    square, own, apart, product = 0.0, 0.0, 0.0, 0.0
    for block in _blocks(model.numbers):
        a = model.numbers[block].astype(np.float64)
        square += float(a @ a)
        if known is not None:
            b = known[block if places is None else places[block]].astype(np.float64)
            own, product = own + float(b @ b), product + float(a @ b)
            a -= b
            apart += float(a @ a)
    if known is None:
        return Figures(sqrt(square * (model.layout.size / max(1, model.numbers.size))))
    rest = 0.0 if places is None else max(0.0, _square(known) - own)
    return Figures(sqrt(square + rest), sqrt(apart), cosine(product, sqrt(square), sqrt(own)))


def _square(vector: Vector) -> float:
    parts = (vector[block].astype(np.float64) for block in _blocks(vector))
    return sum(float(part @ part) for part in parts)


def _blocks(vector: Vector) -> Iterator[slice]:
    return (slice(start, start + BLOCK) for start in range(0, vector.size, BLOCK))


def cosine(product: float, one: float, other: float) -> float:
    """The cosine from the inner product and both norms: 1 same direction, -1 opposite; 0 if a norm is 0."""
    return max(-1.0, min(1.0, product / one / other)) if one > 0 and other > 0 else 0.0
