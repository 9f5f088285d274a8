"""The faults as they are felt at a moment: who reaches whom, what is lost, how slow. Pure functions of time."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from pfl_node.sim.faults import Delay, Fault, Loss, Partition, Slow
from pfl_node.types import PeerId


class Weather:
    """The faults that last, sorted by kind."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        faults = list(faults)
        self.partitions = [f for f in faults if isinstance(f, Partition)]
        self._losses = [f for f in faults if isinstance(f, Loss)]
        self._delays = [f for f in faults if isinstance(f, Delay)]
        self._slow = [f for f in faults if isinstance(f, Slow)]

    def apart(self, a: PeerId, b: PeerId, now: float) -> bool:
        """Does a partition stand between the two?"""
        return any(p.at <= now < p.until and p.apart(a, b) for p in self.partitions)

    def loses(self, now: float, chance: Random) -> bool:
        """Is a message lost that is sent now?"""
        return any(chance.random() < f.rate for f in self._losses if f.at <= now < f.until)

    def delay(self, now: float) -> float:
        """Seconds that a message takes besides its usual time."""
        return sum(f.seconds for f in self._delays if f.at <= now < f.until)

    def slowness(self, node: PeerId, now: float) -> float:
        """By how much a job that begins now takes longer."""
        factor = 1.0
        for f in self._slow:
            if f.node == node and f.at <= now < f.until:
                factor *= f.factor
        return factor
