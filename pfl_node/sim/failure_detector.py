"""What each node believes about the others: a failure detector reduced to its delays. Sends no messages."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Collection, ItemsView, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from pfl_node.sim.costs import Costs, between
from pfl_node.types import PeerId

if TYPE_CHECKING:
    from pfl_node.node.ports import MembersListener
    from pfl_node.sim.node_process import Process
    from pfl_node.sim.world import World

Reach = Callable[[PeerId, PeerId], bool]
Notice = Callable[[PeerId, Collection[PeerId]], None]
After = Callable[[PeerId, float, Callable[[], None]], None]


class Clock(Protocol):
    @property
    def now(self) -> float: ...
    def after(self, seconds: float, callback: Callable[..., object], *args: Any) -> None: ...


class FailureDetector:
    """The members that all know of, and for each node those of them that it believes dead.

    A crash or a partition is noticed after a delay, by all within a moment of each other; a join, a return or a
    leave is known to all after a moment. When the moment of noticing comes, the truth of that moment counts.
    """

    def __init__(
        self,
        clock: Clock,
        costs: Costs,
        chance: Callable[..., float],
        reach: Reach,
        notice: Notice,
        after: After | None = None,
        *,
        detours: bool = False,
    ) -> None:
        self._clock = clock
        self._costs = costs
        self._chance = chance  # by key, between 0 and 1
        self._draws = 0
        self._reach = reach  # does the second answer to the first?
        self._notice = notice  # called with a node and those it has just begun to believe gone
        self._after = after or (lambda _, seconds, action: clock.after(seconds, action))  # on the node's own clock
        self._detours = detours  # may two be in touch by way of a third only, who may come and go?
        self._members: list[PeerId] = []
        self._finished: list[PeerId] = []  # did their last round and left
        self._everyone: tuple[PeerId, ...] | None = None  # both, sorted; None: to be worked out again
        self._dead: dict[PeerId, set[PeerId]] = {}
        self._rounds: dict[PeerId, deque[tuple[float, int]]] = {}  # from when on it is known, and the round

    # -- what a node believes ------------------------------------------------------------------------------

    def alive(self, observer: PeerId) -> tuple[PeerId, ...]:
        """The others that this node believes alive, sorted."""
        dead = self._dead[observer]
        return tuple(m for m in self._members if m not in dead and m != observer)

    def number(self, observer: PeerId) -> int:
        """How many those are."""
        return len(self._members) - len(self._dead[observer]) - self._is_member(observer)

    def finished(self) -> Sequence[PeerId]:
        """Those that all know to have done their last round and left."""
        return self._finished

    def everyone(self, observer: PeerId) -> tuple[PeerId, ...]:
        """Those alive and those that finished, sorted."""
        if self._everyone is None:
            self._everyone = tuple(sorted({*self._members, *self._finished}))
        every, place = self._everyone, bisect_left(self._everyone, observer)
        others = every[:place] + every[place + 1 :] if every[place : place + 1] == (observer,) else every
        dead = self._dead[observer]
        return tuple(m for m in others if m not in dead) if dead else others

    def believes(self, observer: PeerId, subject: PeerId) -> bool:
        return subject != observer and subject not in self._dead[observer] and self._is_member(subject)

    def round_of(self, subject: PeerId) -> int:
        """In which round it is, as far as that is known."""
        told = self._rounds.get(subject)
        if not told:
            return 0
        while len(told) > 1 and told[1][0] <= self._clock.now:
            told.popleft()
        return told[0][1]

    # -- what happens --------------------------------------------------------------------------------------

    def announce(self, node: PeerId, round: int, delay: float) -> None:
        """The node is in that round, which is known to the others after the delay."""
        told = self._rounds.setdefault(node, deque([(0.0, 0)]))
        told.append((self._clock.now + delay, round))

    def announced(self, node: PeerId) -> list[tuple[float, int]]:
        """What it announced, for `restore`."""
        return list(self._rounds.get(node, ()))

    def restore(self, node: PeerId, announced: Iterable[tuple[float, int]]) -> None:
        self._rounds[node] = deque(announced)

    def found(self, members: Iterable[PeerId], finished: Iterable[PeerId] = ()) -> None:
        """The swarm begins with these, who know each other."""
        self._members, self._finished = sorted(members), sorted(finished)
        self._dead = {m: set() for m in self._members}
        self._everyone = None

    def arrived(self, node: PeerId) -> None:
        """A node joined or came back: it looks around now, the others hear of it in a moment."""
        self._dead[node] = {m for m in self._members if m != node and not self._reach(node, m)}
        self._clock.after(self._costs.news, partial(self._welcome, node))

    def left(self, node: PeerId) -> None:
        """A node said goodbye."""
        self._clock.after(self._costs.news, partial(self._forget, node))

    def crashed(self, node: PeerId) -> None:
        self._judge_all(self._costs.detection, lambda _: (node,))
        if self._detours:
            self.divided()

    def divided(self) -> None:
        """A partition began."""
        self._judge_all(
            self._costs.detection, lambda o: tuple(m for m in self._members if m != o and not self._reach(o, m))
        )

    def healed(self) -> None:
        """A partition ended."""
        self._judge_all(self._costs.healing, lambda o: tuple(sorted(self._dead[o])))

    # -- the moments of noticing ---------------------------------------------------------------------------

    def _judge_all(self, span: tuple[float, float], subjects: Callable[[PeerId], Sequence[PeerId]]) -> None:
        """One notices it first, and tells the others."""
        first = between(*span, self._draw())
        for observer in self._observers():
            if found := subjects(observer):
                heard = first + self._costs.news * self._draw()
                self._after(observer, heard, partial(self._judge, observer, found))

    def _draw(self) -> float:
        self._draws += 1
        return self._chance("detection", self._draws)

    def _judge(self, observer: PeerId, subjects: Sequence[PeerId]) -> None:
        dead = self._dead[observer]
        gone = [s for s in subjects if self._is_member(s) and not self._reach(observer, s)]
        news = [s for s in gone if s not in dead]
        dead.difference_update(subjects)
        dead.update(gone)
        if news:
            self._notice(observer, news)

    def _welcome(self, node: PeerId) -> None:
        if not self._is_member(node):
            insort(self._members, node)
            self._everyone = None
        for observer in self._observers():
            if observer != node:
                self._judge(observer, (node,))
        self._look_again(node)
        if self._detours:
            self.healed()

    def _look_again(self, node: PeerId) -> None:
        """Who came or went in the moment before the node was known: it is told of the others from now on only."""
        dead = self._dead[node]
        news = tuple(m for m in self._members if m != node and (m in dead) is self._reach(node, m))
        if news:
            span = between(*self._costs.detection, self._draw())
            self._after(node, span, partial(self._judge, node, news))

    def _forget(self, node: PeerId) -> None:
        """Nobody is notified: calls to it fail at once, and whoever waits for its model looks at the members now
        and then."""
        self._members.remove(node)
        insort(self._finished, node)
        for dead in self._dead.values():  # also that of a newcomer, which is no member yet
            dead.discard(node)
        if self._detours:
            self.divided()

    def _is_member(self, node: PeerId) -> bool:
        place = bisect_left(self._members, node)
        return place < len(self._members) and self._members[place] == node

    def _observers(self) -> list[PeerId]:
        return [m for m in self._members if m in self._dead]


class Alive(Mapping[PeerId, str]):
    """The peers that a node believes alive, and their addresses, which are their ids."""

    def __init__(self, detector: FailureDetector, me: PeerId) -> None:
        self._detector = detector
        self._me = me

    def __getitem__(self, peer: PeerId) -> str:
        if not self._detector.believes(self._me, peer):
            raise KeyError(peer)
        return peer

    def __contains__(self, peer: object) -> bool:
        return self._detector.believes(self._me, peer)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[PeerId]:
        return iter(self._detector.alive(self._me))

    def __len__(self) -> int:
        return self._detector.number(self._me)


class Rounds(Mapping[PeerId, int]):
    """The rounds of the peers that a node believes alive."""

    def __init__(self, detector: FailureDetector, me: PeerId) -> None:
        self._detector = detector
        self._me = me

    def __getitem__(self, peer: PeerId) -> int:
        if not self._detector.believes(self._me, peer):
            raise KeyError(peer)
        return self._detector.round_of(peer)

    def __contains__(self, peer: object) -> bool:
        return self._detector.believes(self._me, peer)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[PeerId]:
        return iter(self._detector.alive(self._me))

    def __len__(self) -> int:
        return self._detector.number(self._me)

    def items(self) -> ItemsView[PeerId, int]:
        return {p: self._detector.round_of(p) for p in self}.items()


class DetectorMembers:
    """The members as one node sees them, in one of its lives."""

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
        return Alive(self._world.views, self._me.id)

    def rounds(self) -> Mapping[PeerId, int]:
        return Rounds(self._world.views, self._me.id)

    def finished(self) -> Sequence[PeerId]:
        return self._world.views.finished()

    def everyone(self) -> tuple[PeerId, ...]:
        return self._world.views.everyone(self._me.id)

    def announce(self, round: int) -> None:
        if self._started and not self._cut:
            delay = self._world.costs.news + self._world.weather.delay(self._world.clock.now)
            self._world.views.announce(self._me.id, round, delay)
            self._me.announced(round)

    def ask(self, peers: Iterable[PeerId]) -> None: ...

    async def leave(self) -> None:
        if not self._cut:
            self._world.views.left(self._me.id)

    async def close(self) -> None: ...

    def cut(self) -> None:
        """The process is gone: nobody hears of it any more."""
        self._cut = True
        self.listener = None
