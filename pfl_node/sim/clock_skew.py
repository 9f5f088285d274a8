"""The clock of a node that goes wrong: what it shows, and when on the world's clock its alarms ring."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf, prod

from pfl_node.sim.faults import Skew


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of time in which the clock goes evenly."""

    begin: float
    shows: float  # at the beginning
    rate: float


class Hands:
    """What a clock shows, as a pure function of time, and the inverse. It only ever goes forward."""

    def __init__(self, skews: Iterable[Skew]) -> None:
        skews = list(skews)
        edges = sorted({0.0, *(t for f in skews for t in (f.at, f.until) if t < inf)})
        self._pieces: list[Piece] = []
        for begin in edges:
            rate = prod((f.rate for f in skews if f.at <= begin < f.until), start=1.0)
            jump = sum(f.ahead for f in skews if f.at == begin)
            self._pieces.append(Piece(begin, (self.show(begin) if self._pieces else begin) + jump, rate))

    def show(self, time: float) -> float:
        piece = next((p for p in reversed(self._pieces) if p.begin <= time), self._pieces[0])
        return piece.shows + (time - piece.begin) * piece.rate

    def when(self, shown: float) -> float:
        """The first moment at which it shows this or more."""
        place = next((i for i, p in reversed([*enumerate(self._pieces)]) if p.shows <= shown), None)
        if place is None:
            return self._pieces[0].begin
        piece = self._pieces[place]
        end = self._pieces[place + 1].begin if place + 1 < len(self._pieces) else inf
        return min(end, piece.begin + (shown - piece.shows) / piece.rate)


class SkewedClock:
    """A node's own clock, on the world's time."""

    def __init__(self, hands: Hands, world: Callable[[], float]) -> None:
        self._hands = hands
        self._world = world
        self._rang = -inf  # the latest timer that fired: no rounding may show a time before it

    @property
    def now(self) -> float:
        return self.show(self._world())

    def show(self, world: float) -> float:
        return max(self._rang, self._hands.show(world))

    def when(self, time: float) -> float:
        """At what time of the world it shows this time."""
        return self._hands.when(time)

    def rang(self, time: float) -> None:
        """A timer fired that was set to this time."""
        self._rang = max(self._rang, time)
