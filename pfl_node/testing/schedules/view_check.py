"""Checks which peers each node believes alive, whenever nothing has changed for as long as detection takes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from math import inf

from pfl_node.sim.faults import Crash, Cut, Fault, Join, Partition, Restart, Skew
from pfl_node.sim.simulation import Simulation, World
from pfl_node.testing.schedules.rules import Violations
from pfl_node.types import PeerId


class ViewCheck:
    def __init__(self, violations: Violations) -> None:
        self._violations = violations
        self._notice = 0.0  # seconds until all nodes have detected a change
        self._gone = -inf  # when a node left last

    def plan(self, swarm: Simulation) -> None:
        """Schedule the checks. The simulation must not have started."""
        costs, world = swarm.world.costs, swarm.world
        self._notice = max(*costs.detection, *costs.healing) / _slowest(swarm.faults) + 2 * costs.news
        edges = sorted({0.0, *(t for f in swarm.faults for t in _edges(f))})
        for edge, following in zip(edges, [*edges[1:], inf], strict=True):
            if edge + self._notice < following and edge < inf:
                world.clock.at(edge + self._notice, lambda: self._check(world))

    def went(self, now: float) -> None:
        """A node left, and with it perhaps the only path around a cut link."""
        self._gone = now

    def _check(self, world: World) -> None:
        now = world.clock.now
        if world.conditions.cuts and now < self._gone + self._notice:
            return
        there = [node for node in world.nodes.values() if node.state in ("up", "crashed")]
        for me in [node for node in there if node.up]:
            for other in there:
                if other is not me:
                    truth, belief = world.in_touch(me.id, other.id), world.detector.believes(me.id, other.id)
                    text = f"wrongly believes {other.id} {'alive' if belief else 'dead'}"
                    self._violations.check("views", belief is truth, me.id, text)


def _slowest(faults: Iterable[Fault]) -> float:
    """A lower bound of the rates of all clocks: skews of a node that overlap multiply."""
    rates: defaultdict[PeerId, float] = defaultdict(lambda: 1.0)
    for fault in faults:
        if isinstance(fault, Skew):
            rates[fault.node] *= min(fault.rate, 1.0)
    return min(rates.values(), default=1.0)


def _edges(fault: Fault) -> list[float]:
    """The times at which it changes which nodes can reach each other."""
    if isinstance(fault, Partition | Cut):
        return [fault.at, fault.until]
    return [fault.at] if isinstance(fault, Crash | Restart | Join) else []
