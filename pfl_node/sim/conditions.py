"""The faults as they are felt at a moment: who reaches whom, what is lost, how slow. Pure functions of time."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pfl_node.sim.faults import Cut, Delay, Fault, Loss, Partition, Skew, Slow
from pfl_node.types import PeerId


class Conditions:
    """The faults that last, sorted by kind."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        faults = list(faults)
        self.partitions = [f for f in faults if isinstance(f, Partition)]
        self.cuts = [f for f in faults if isinstance(f, Cut)]
        self._losses = [f for f in faults if isinstance(f, Loss)]
        self._delays = [f for f in faults if isinstance(f, Delay)]
        self._slow = [f for f in faults if isinstance(f, Slow)]
        self._skews = [f for f in faults if isinstance(f, Skew)]

    def apart(self, a: PeerId, b: PeerId, now: float) -> bool:
        """Does something keep messages of a from b?"""
        return any(f.at <= now < f.until and f.apart(a, b) for f in self.partitions) or any(
            f.at <= now < f.until and f.apart(a, b) for f in self.cuts
        )

    def loses(self, now: float, chance: Callable[[int], float]) -> bool:
        """Is a message lost that is sent now? `chance` draws for each fault by its number."""
        return any(chance(n) < f.rate for n, f in enumerate(self._losses) if f.at <= now < f.until)

    def delay(self, now: float) -> float:
        """Seconds that a message takes besides its usual time."""
        return sum(f.seconds for f in self._delays if f.at <= now < f.until)

    @property
    def longest(self) -> float:
        """Seconds that `delay` may ever be."""
        return sum(f.seconds for f in self._delays)

    def slowness(self, node: PeerId, now: float) -> float:
        """By how much a job that begins now takes longer."""
        factor = 1.0
        for f in self._slow:
            if f.node == node and f.at <= now < f.until:
                factor *= f.factor
        return factor

    def skews(self, node: PeerId) -> list[Skew]:
        """What is wrong with the clock of a node."""
        return [f for f in self._skews if f.node == node]
