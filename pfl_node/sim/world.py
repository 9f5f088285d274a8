"""What all nodes of a simulation share: the clock, the weather, the journal, each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pfl_node.settings import Settings
from pfl_node.sim.average_cache import AverageCache
from pfl_node.sim.clock import Action, Clock, Timer
from pfl_node.sim.clock_skew import Hands, OwnClock
from pfl_node.sim.conditions import Conditions
from pfl_node.sim.costs import Costs
from pfl_node.sim.delay_detector import DelayDetector
from pfl_node.sim.event_journal import EventJournal
from pfl_node.types import PeerId

if TYPE_CHECKING:
    from pfl_node.sim.node import SimNode


@dataclass
class Traffic:
    """What a node sent and got. Everything sent is in the end received, refused or lost."""

    models_sent: int = 0
    bytes_sent: int = 0
    models_received: int = 0
    bytes_received: int = 0
    models_lost: int = 0  # of those it sent
    refused: Counter[str] = field(default_factory=Counter)  # what it refused, by reason

    def sent(self, nbytes: int) -> None:
        self.models_sent += 1
        self.bytes_sent += nbytes

    def received(self, nbytes: int) -> None:
        self.models_received += 1
        self.bytes_received += nbytes


@dataclass
class World:
    """Handed to every part of the simulation."""

    settings: Settings
    costs: Costs
    clock: Clock
    weather: Conditions
    journal: EventJournal
    reported: Callable[[], None]  # somebody finished a round
    nodes: dict[PeerId, SimNode] = field(default_factory=dict)
    running: int = 0  # nodes that are up
    until: int | None = None  # a round that nobody begins: whoever reported the one before is held there
    held: int = 0  # nodes that wait there
    averages: AverageCache = field(default_factory=AverageCache)
    views: DelayDetector = field(init=False)

    def __post_init__(self) -> None:
        seed, cuts = self.settings.seed, bool(self.weather.cuts)
        self.views = DelayDetector(
            self.clock, self.costs, seed, self.in_touch, self._notice, self._after, detours=cuts
        )

    def reaches(self, a: PeerId, b: PeerId) -> bool:
        """Would a message of a get to b now?"""
        node = self.nodes.get(b)
        return node is not None and node.up and not self.weather.apart(a, b, self.clock.now)

    def in_touch(self, a: PeerId, b: PeerId) -> bool:
        """Would b answer a probe of a now, directly or by way of a third?"""
        if self._answers(a, b):
            return True
        thirds = self.nodes if self.weather.cuts else ()  # a partition has no way around it
        return any(self._answers(a, c) and self._answers(c, b) for c in thirds if c not in (a, b))

    def clock_of(self, node: PeerId) -> Timer:
        skews = self.weather.skews(node)
        return OwnClock(self.clock, Hands(skews)) if skews else self.clock

    def _answers(self, a: PeerId, b: PeerId) -> bool:
        return self.reaches(a, b) and not self.weather.apart(b, a, self.clock.now)

    def _after(self, observer: PeerId, seconds: float, action: Action) -> None:
        self.nodes[observer].clock.after(seconds, action)

    def _notice(self, observer: PeerId, gone: Collection[PeerId]) -> None:
        self.nodes[observer].lost_sight(gone)
