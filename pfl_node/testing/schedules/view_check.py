"""Does everybody know who is there? Looked at whenever nothing has changed for as long as it takes to notice."""

from __future__ import annotations

from math import inf

from pfl_node.sim.faults import Crash, Cut, Fault, Join, Partition, Restart, Skew
from pfl_node.sim.simulation import Simulation
from pfl_node.sim.world import World
from pfl_node.testing.schedules.rules import Violations


class ViewCheck:
    """`plan` it for a swarm that has not begun."""

    def __init__(self, findings: Violations) -> None:
        self._findings = findings
        self._notice = 0.0  # seconds until everybody has noticed what happened
        self._gone = -inf  # when somebody went last

    def plan(self, swarm: Simulation) -> None:
        """Sets the moments on its clock."""
        costs, world = swarm.world.costs, swarm.world
        slowest = min((f.rate for f in swarm.faults if isinstance(f, Skew)), default=1.0)
        self._notice = max(*costs.detection, *costs.healing) / min(slowest, 1.0) + 2 * costs.news
        edges = sorted({0.0, *(t for f in swarm.faults for t in _edges(f))})
        for edge, following in zip(edges, [*edges[1:], inf], strict=True):
            if edge + self._notice < following and edge < inf:
                world.clock.at(edge + self._notice, lambda: self._look(world))

    def went(self, now: float) -> None:
        """Somebody left: with it a way around a link that is cut."""
        self._gone = now

    def _look(self, world: World) -> None:
        now = world.clock.now
        if world.weather.cuts and now < self._gone + self._notice:
            return
        there = [node for node in world.nodes.values() if node.state in ("up", "crashed")]
        for me in [node for node in there if node.up]:
            for other in there:
                if other is not me:
                    truth, belief = world.in_touch(me.id, other.id), world.views.believes(me.id, other.id)
                    told = f"believes {other.id} {'alive' if belief else 'dead'}, which is not so"
                    self._findings.check("views", belief is truth, now, me.id, told)


def _edges(fault: Fault) -> list[float]:
    """When it changes who reaches whom."""
    if isinstance(fault, Partition | Cut):
        return [fault.at, fault.until]
    return [fault.at] if isinstance(fault, Crash | Restart | Join) else []
