"""The effect of the faults at a given time: reachability, loss, delay, slowness. Pure functions of time."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pfl_node.sim.faults import Cut, Delay, Fault, Loss, Partition, Skew, Slow
from pfl_node.types import PeerId


class Conditions:
    """All faults with a duration, grouped by kind."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        faults = list(faults)
        self.partitions = [f for f in faults if isinstance(f, Partition)]
        self.cuts = [f for f in faults if isinstance(f, Cut)]
        self._blocks: list[Partition | Cut] = [*self.partitions, *self.cuts]
        self._losses = [f for f in faults if isinstance(f, Loss)]
        self._delays = [f for f in faults if isinstance(f, Delay)]
        self._slow = [f for f in faults if isinstance(f, Slow)]
        self._skews = [f for f in faults if isinstance(f, Skew)]

    def blocked(self, a: PeerId, b: PeerId, now: float) -> bool:
        """Are messages from a to b blocked?"""
        return any(f.at <= now < f.until and f.blocks(a, b) for f in self._blocks)

    def loses(self, now: float, chance: Callable[[int], float]) -> bool:
        """Is a message sent now lost? `chance(n)` is a uniform draw for the n-th Loss."""
        return any(chance(n) < f.rate for n, f in enumerate(self._losses) if f.at <= now < f.until)

    def delay(self, now: float) -> float:
        """Additional latency of a message, in seconds."""
        return sum(f.seconds for f in self._delays if f.at <= now < f.until)

    @property
    def max_delay(self) -> float:
        """Upper bound of `delay`."""
        return sum(f.seconds for f in self._delays)

    def slowness(self, node: PeerId, now: float) -> float:
        """Factor on the duration of a job that starts now."""
        factor = 1.0
        for f in self._slow:
            if f.node == node and f.at <= now < f.until:
                factor *= f.factor
        return factor

    def skews(self, node: PeerId) -> list[Skew]:
        return [f for f in self._skews if f.node == node]
