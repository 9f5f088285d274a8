"""A node's skewed clock: the local time it shows, and the simulation time at which its timers fire."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf, prod

from pfl_node.sim.faults import Skew


@dataclass(frozen=True, slots=True)
class Piece:
    """An interval of simulation time in which the rate is constant."""

    begin: float
    local: float  # at `begin`
    rate: float


class LocalTime:
    """Local time as a piecewise linear, increasing function of simulation time, and its inverse."""

    def __init__(self, skews: Iterable[Skew]) -> None:
        skews = list(skews)
        edges = sorted({0.0, *(t for f in skews for t in (f.at, f.until) if t < inf)})
        self._pieces: list[Piece] = []
        for begin in edges:
            rate = prod((f.rate for f in skews if f.at <= begin < f.until), start=1.0)
            jump = sum(f.ahead for f in skews if f.at == begin)
            self._pieces.append(Piece(begin, (self.at(begin) if self._pieces else begin) + jump, rate))

    def at(self, time: float) -> float:
        piece = next((p for p in reversed(self._pieces) if p.begin <= time), self._pieces[0])
        return piece.local + (time - piece.begin) * piece.rate

    def inverse(self, local: float) -> float:
        """The earliest simulation time at which the local time is `local` or later."""
        place = next((i for i, p in reversed([*enumerate(self._pieces)]) if p.local <= local), None)
        if place is None:
            return self._pieces[0].begin
        piece = self._pieces[place]
        end = self._pieces[place + 1].begin if place + 1 < len(self._pieces) else inf
        return min(end, piece.begin + (local - piece.local) / piece.rate)


class SkewedClock:
    def __init__(self, local: LocalTime, world: Callable[[], float]) -> None:
        self._local = local
        self._world = world
        self._fired = -inf  # local time of the latest timer that fired: rounding must not show an earlier one

    @property
    def now(self) -> float:
        return self.show(self._world())

    def show(self, world: float) -> float:
        return max(self._fired, self._local.at(world))

    def when(self, time: float) -> float:
        """The simulation time at which this clock shows `time`."""
        return self._local.inverse(time)

    def timer_fired(self, time: float) -> None:
        """Record that the timer set to `time` has fired."""
        self._fired = max(self._fired, time)
