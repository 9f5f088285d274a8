"""A failure detector modelled by its delays alone: which peers each node believes alive. Sends no messages."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, Sequence
from functools import partial
from heapq import heappop, heappush
from typing import TYPE_CHECKING, TypeVar

from pfl_node.sim.costs import between
from pfl_node.types import PeerId

if TYPE_CHECKING:
    from pfl_node.node.ports import MembersListener
    from pfl_node.sim.node_process import Process
    from pfl_node.sim.simulation import World

V = TypeVar("V", covariant=True)


class FailureDetector:
    """The member list shared by all nodes, and for each node the members it believes dead.

    Nodes detect a crash or a partition after `costs.detection`, within `costs.news` of each other; they learn of a
    join, a restart or a leave after `costs.news`. Detection checks reachability at the time of detection.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._clock, self._costs = world.clock, world.costs
        self._draws = 0
        self._detours = bool(world.conditions.cuts)  # a third node may connect two, and can crash or leave
        self._members: list[PeerId] = []
        self._known: set[PeerId] = set()  # the same, as a set
        self._present: tuple[PeerId, ...] | None = None  # the same, as a tuple for `alive`; None: rebuild
        self._finished: list[PeerId] = []  # completed their last round and left
        self._everyone: tuple[PeerId, ...] | None = None  # members and finished, sorted; None: rebuild
        self._dead: dict[PeerId, set[PeerId]] = {}
        self._rounds: dict[PeerId, tuple[int, int]] = {}  # number of the announcement, round
        self._number = 0
        self._announced: list[tuple[float, int, PeerId, int]] = []  # heap of pending announcements
        self._counts: Counter[int] = Counter()  # number of members in each round

    # -- a node's view -------------------------------------------------------------------------------------

    def alive(self, observer: PeerId) -> tuple[PeerId, ...]:
        """The peers this node believes alive, sorted."""
        if self._present is None:
            self._present = tuple(self._members)
        return self._without(self._present, observer)

    def finished(self) -> Sequence[PeerId]:
        """Peers known to have completed their last round and left."""
        return self._finished

    def everyone(self, observer: PeerId) -> tuple[PeerId, ...]:
        """The peers believed alive and those that finished, sorted."""
        if self._everyone is None:
            self._everyone = tuple(sorted({*self._members, *self._finished}))
        return self._without(self._everyone, observer)

    def _without(self, members: tuple[PeerId, ...], observer: PeerId) -> tuple[PeerId, ...]:
        """Remove the observer and the peers it believes dead, of which there are usually none."""
        place, dead = bisect_left(members, observer), self._dead[observer]
        if members[place : place + 1] == (observer,):
            members = members[:place] + members[place + 1 :]
        return tuple(m for m in members if m not in dead) if dead else members

    def believes(self, observer: PeerId, subject: PeerId) -> bool:
        return subject != observer and subject not in self._dead[observer] and subject in self._known

    def round_of(self, subject: PeerId) -> int:
        """The node's last announced round that the others have received."""
        self._apply_announcements()
        return self._rounds.get(subject, (0, 0))[1]

    def swarm_round(self, observer: PeerId) -> int:
        """The lower median round of the peers believed alive: at least half of them have reached it."""
        self._apply_announcements()
        excluded = [p for p in (observer, *self._dead[observer]) if p in self._known]
        counts = self._counts - Counter(self.round_of(p) for p in excluded)
        left = (counts.total() - 1) // 2
        for round in sorted(counts):
            if left < counts[round]:
                return round
            left -= counts[round]
        return 0

    def _apply_announcements(self) -> None:
        """Apply the announcements that have arrived by now."""
        now = self._clock.now
        while self._announced and self._announced[0][0] <= now:
            _, number, node, round = heappop(self._announced)
            before, old = self._rounds.get(node, (0, 0))
            if number > before:
                self._rounds[node] = number, round
                if node in self._known:
                    self._counts[old] -= 1
                    self._counts[round] += 1

    # -- events --------------------------------------------------------------------------------------------

    def announce(self, node: PeerId, round: int, delay: float) -> None:
        """Announce the node's round; the others receive it after `delay` seconds."""
        self._number += 1
        heappush(self._announced, (self._clock.now + delay, self._number, node, round))

    def announced(self, node: PeerId) -> list[tuple[float, int]]:
        """The node's announcements, in the form `restore` takes."""
        later = sorted((at, number, round) for at, number, who, round in self._announced if who == node)
        return [(0.0, self.round_of(node)), *((at, round) for at, _, round in later)]

    def restore(self, node: PeerId, announced: Iterable[tuple[float, int]]) -> None:
        for at, round in announced:
            self.announce(node, round, at - self._clock.now)

    def start_with(self, members: Iterable[PeerId], finished: Iterable[PeerId] = ()) -> None:
        """Start the swarm with these members, which all know each other."""
        self._members, self._finished = sorted(members), sorted(finished)
        self._known = set(self._members)
        self._counts = Counter(self.round_of(m) for m in self._members)
        self._dead = {m: set() for m in self._members}
        self._everyone = self._present = None

    def arrived(self, node: PeerId) -> None:
        """A node joined or restarted: it checks its peers now, and they learn of it after `costs.news`."""
        self._dead[node] = set(self._unreachable(node))
        self._clock.after(self._costs.news, partial(self._welcome, node))

    def left(self, node: PeerId) -> None:
        self._clock.after(self._costs.news, partial(self._remove, node))

    def crashed(self, node: PeerId) -> None:
        self._schedule_detection(self._costs.detection, lambda _: (node,))
        if self._detours:
            self.divided()

    def divided(self) -> None:
        self._schedule_detection(self._costs.detection, self._unreachable)

    def healed(self) -> None:
        self._schedule_detection(self._costs.healing, lambda o: tuple(sorted(self._dead[o])))

    # -- detection -----------------------------------------------------------------------------------------

    def _schedule_detection(
        self, span: tuple[float, float], subjects: Callable[[PeerId], Sequence[PeerId]]
    ) -> None:
        """One node detects the change first; each observer learns of it within `costs.news` after that."""
        first = between(*span, self._draw())
        for observer in self._observers():
            if found := subjects(observer):
                heard = first + self._costs.news * self._draw()
                self._world.after(observer, heard, partial(self._detect, observer, found))

    def _unreachable(self, observer: PeerId) -> Sequence[PeerId]:
        return [m for m in self._members if m != observer and not self._world.in_touch(observer, m)]

    def _draw(self) -> float:
        self._draws += 1
        return self._world.chance("detection", self._draws)

    def _detect(self, observer: PeerId, subjects: Sequence[PeerId]) -> None:
        dead = self._dead[observer]
        gone = [s for s in subjects if s in self._known and not self._world.in_touch(observer, s)]
        news = [s for s in gone if s not in dead]
        dead.difference_update(subjects)
        dead.update(gone)
        if news:
            self._world.notice(observer, news)

    def _welcome(self, node: PeerId) -> None:
        if node not in self._known:
            insort(self._members, node)
            self._known.add(node)
            self._counts[self.round_of(node)] += 1
            self._everyone = self._present = None
        for observer in self._observers():
            if observer != node:
                self._detect(observer, (node,))
        self._recheck(node)
        if self._detours:
            self.healed()

    def _recheck(self, node: PeerId) -> None:
        """Catch up on changes since the node arrived: until it was listed it was not an observer."""
        dead = self._dead[node]
        news = tuple(m for m in self._members if m != node and (m in dead) is self._world.in_touch(node, m))
        if news:
            span = between(*self._costs.detection, self._draw())
            self._world.after(node, span, partial(self._detect, node, news))

    def _remove(self, node: PeerId) -> None:
        """Send no notice: calls to the node fail at once, and a peer that waits for its model polls the member
        list."""
        del self._members[bisect_left(self._members, node)]
        self._counts[self.round_of(node)] -= 1
        self._known.discard(node)
        self._present = None
        insort(self._finished, node)
        for dead in self._dead.values():  # includes nodes that have joined but are not listed yet
            dead.discard(node)
        if self._detours:
            self.divided()

    def _observers(self) -> list[PeerId]:
        return [m for m in self._members if m in self._dead]


class DetectorView(Mapping[PeerId, V]):
    """A mapping from the peers a node believes alive to a value for each."""

    def __init__(self, detector: FailureDetector, me: PeerId, about: Callable[[PeerId], V]) -> None:
        self._detector = detector
        self._me = me
        self._about = about

    def __getitem__(self, peer: PeerId) -> V:
        if peer not in self:
            raise KeyError(peer)
        return self._about(peer)

    def __contains__(self, peer: object) -> bool:
        return self._detector.believes(self._me, peer)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[PeerId]:
        return iter(self._detector.alive(self._me))

    def __len__(self) -> int:
        return len(self._detector.alive(self._me))

    def items(self) -> ItemsView[PeerId, V]:
        return {p: self._about(p) for p in self}.items()


class DetectorMembers:
    """One node's membership port; every restart of the node gets a new one."""

    listener: MembersListener | None = None
    joined = True
    pauses = 0

    def __init__(self, process: Process, world: World) -> None:
        self._me = process
        self._world = world
        self._started = self._cut = False

    async def start(self, address: str) -> None:  # noqa: ARG002
        await self._me.entered()
        self._started = True

    def alive(self) -> Mapping[PeerId, str]:
        return DetectorView(self._world.detector, self._me.id, str)  # a peer's id is its address

    def rounds(self) -> Mapping[PeerId, int]:
        return DetectorView(self._world.detector, self._me.id, self._world.detector.round_of)

    async def swarm_round(self) -> int:
        return self._world.detector.swarm_round(self._me.id)

    def finished(self) -> Sequence[PeerId]:
        return self._world.detector.finished()

    def everyone(self) -> tuple[PeerId, ...]:
        return self._world.detector.everyone(self._me.id)

    def announce(self, round: int) -> None:
        if self._started and not self._cut:
            delay = self._world.costs.news + self._world.conditions.delay(self._world.clock.now)
            self._world.detector.announce(self._me.id, round, delay)
            self._me.announced(round)

    def ask(self, peers: Iterable[PeerId]) -> None: ...

    async def leave(self) -> None:
        if not self._cut:
            self._world.detector.left(self._me.id)

    async def close(self) -> None: ...

    def cut(self) -> None:
        """The process is gone: it announces nothing more and its listener is dropped."""
        self._cut = True
        self.listener = None
