"""The state shared by all nodes of a simulation: clock, conditions, network, journal and the table of nodes."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from xxhash import xxh3_64_intdigest

from pfl_node.settings import Settings
from pfl_node.sim.costs import Costs
from pfl_node.sim.event_journal import EventJournal
from pfl_node.sim.event_loop import LocalTime, SkewedClock, VirtualLoop
from pfl_node.sim.failure_detector import FailureDetector
from pfl_node.sim.faults import Conditions
from pfl_node.sim.inline_trainer import AverageCache
from pfl_node.sim.job_pool import Inline, Jobs
from pfl_node.sim.network import Fabric
from pfl_node.tracking.tracking import Observe
from pfl_node.types import PeerId

if TYPE_CHECKING:
    from pfl_node.sim.node_process import Process

Watch = Callable[[PeerId], Observe | None]  # the observer of a node


def nobody_watches(node: PeerId) -> Observe | None:  # noqa: ARG001
    return None


@dataclass
class World:
    settings: Settings
    costs: Costs
    clock: VirtualLoop
    conditions: Conditions
    journal: EventJournal
    reported: Callable[[], None]  # called after every Report
    nodes: dict[PeerId, Process] = field(default_factory=dict)
    running: int = 0  # number of nodes that are up
    until: int | None = None  # first round of the next segment: nodes hold before it
    held: int = 0  # number of nodes held there
    averages: AverageCache = field(default_factory=AverageCache)
    jobs: Jobs = field(default_factory=Inline)  # runs training and scoring
    watch: Watch = nobody_watches
    detector: FailureDetector = field(init=False)
    fabric: Fabric = field(init=False)

    def __post_init__(self) -> None:
        self.fabric = Fabric(self)
        self.detector = FailureDetector(self)

    def chance(self, *key: object) -> float:
        """A uniform draw from [0, 1), determined by the seed and the key alone."""
        return xxh3_64_intdigest("/".join(map(str, (self.settings.seed, *key))).encode()) / 2**64

    def message(self, node: PeerId, event: str, **data: Any) -> None:
        self.journal.message(self.clock.now, node, event, **data)

    def reaches(self, a: PeerId, b: PeerId) -> bool:
        """Would a message from a arrive at b now?"""
        node = self.nodes.get(b)
        return node is not None and node.up and not self.conditions.blocked(a, b, self.clock.now)

    def in_touch(self, a: PeerId, b: PeerId) -> bool:
        """Would b answer a probe from a now, directly or through a third node?"""
        if self._answers(a, b):
            return True
        thirds = self.nodes if self.conditions.cuts else ()  # nothing routes around a partition
        return any(self._answers(a, c) and self._answers(c, b) for c in thirds if c not in (a, b))

    def clock_of(self, node: PeerId) -> VirtualLoop | SkewedClock:
        skews = self.conditions.skews(node)
        return SkewedClock(LocalTime(skews), lambda: self.clock.now) if skews else self.clock

    def _answers(self, a: PeerId, b: PeerId) -> bool:
        return self.reaches(a, b) and not self.conditions.blocked(b, a, self.clock.now)

    def after(self, observer: PeerId, seconds: float, action: Callable[[], None]) -> None:
        """Call back after so many seconds on the observer's own clock."""
        clock = self.nodes[observer].clock
        self.clock.at(clock.when(clock.now + seconds), action)

    def notice(self, observer: PeerId, gone: Collection[PeerId]) -> None:
        """The observer has declared these peers dead."""
        self.nodes[observer].peers_lost(gone)
