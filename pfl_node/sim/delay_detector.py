"""What each node believes about the others: a failure detector reduced to its delays. Sends no messages."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from random import Random

from pfl_node.sim.clock import Action, Clock
from pfl_node.sim.costs import Costs
from pfl_node.types import PeerId

Reach = Callable[[PeerId, PeerId], bool]
Notice = Callable[[PeerId, Collection[PeerId]], None]
After = Callable[[PeerId, float, Action], None]


class DelayDetector:
    """The members that all know of, and for each node those of them that it believes dead.

    A crash or a partition is noticed by each node after a delay of its own; a join, a return or a leave is known
    to all after a moment. When the moment of noticing comes, the truth of that moment counts.
    """

    def __init__(
        self,
        clock: Clock,
        costs: Costs,
        seed: int,
        reach: Reach,
        notice: Notice,
        after: After | None = None,
        *,
        detours: bool = False,
    ) -> None:
        self._clock = clock
        self._costs = costs
        self._chance = Random(f"{seed}/views")
        self._reach = reach  # does the second answer to the first?
        self._notice = notice  # called with a node and those it has just begun to believe gone
        self._after = after or (lambda _, seconds, action: clock.after(seconds, action))  # on the node's own clock
        self._detours = detours  # may two be in touch by way of a third only, who may come and go?
        self._members: list[PeerId] = []
        self._finished: list[PeerId] = []  # did their last round and left
        self._dead: dict[PeerId, set[PeerId]] = {}
        self._alive: dict[PeerId, tuple[PeerId, ...]] = {}  # worked out from the two above

    # -- what a node believes ------------------------------------------------------------------------------

    def alive(self, observer: PeerId) -> tuple[PeerId, ...]:
        """The others that this node believes alive, sorted."""
        if observer not in self._alive:
            dead = self._dead[observer]
            self._alive[observer] = tuple(m for m in self._members if m not in dead and m != observer)
        return self._alive[observer]

    def finished(self) -> Sequence[PeerId]:
        """Those that all know to have done their last round and left."""
        return self._finished

    def believes(self, observer: PeerId, subject: PeerId) -> bool:
        return subject not in self._dead[observer] and self._is_member(subject)

    # -- what happens --------------------------------------------------------------------------------------

    def found(self, members: Iterable[PeerId]) -> None:
        """The swarm begins with these, who know each other."""
        self._members = sorted(members)
        self._dead = {m: set() for m in self._members}

    def arrived(self, node: PeerId) -> None:
        """A node joined or came back: it looks around now, the others hear of it in a moment."""
        self._dead[node] = {m for m in self._members if m != node and not self._reach(node, m)}
        self._alive.pop(node, None)
        self._clock.after(self._costs.news, partial(self._welcome, node))

    def left(self, node: PeerId) -> None:
        """A node said goodbye."""
        self._clock.after(self._costs.news, partial(self._forget, node))

    def crashed(self, node: PeerId) -> None:
        for observer in self._observers():
            self._judge_after(self._costs.detection, observer, (node,))
        if self._detours:
            self.divided()

    def divided(self) -> None:
        """A partition began."""
        for observer in self._observers():
            cut_off = tuple(m for m in self._members if m != observer and not self._reach(observer, m))
            if cut_off:
                self._judge_after(self._costs.detection, observer, cut_off)

    def healed(self) -> None:
        """A partition ended."""
        for observer in self._observers():
            if dead := self._dead[observer]:
                self._judge_after(self._costs.healing, observer, tuple(sorted(dead)))

    # -- the moments of noticing ---------------------------------------------------------------------------

    def _judge_after(self, span: tuple[float, float], observer: PeerId, subjects: Sequence[PeerId]) -> None:
        self._after(observer, self._chance.uniform(*span), partial(self._judge, observer, subjects))

    def _judge(self, observer: PeerId, subjects: Sequence[PeerId]) -> None:
        dead = self._dead[observer]
        gone = [s for s in subjects if self._is_member(s) and not self._reach(observer, s)]
        news = [s for s in gone if s not in dead]
        dead.difference_update(subjects)
        dead.update(gone)
        self._alive.pop(observer, None)
        if news:
            self._notice(observer, news)

    def _welcome(self, node: PeerId) -> None:
        if not self._is_member(node):
            insort(self._members, node)
        for observer in self._observers():
            if observer != node:
                self._judge(observer, (node,))
        self._alive.clear()
        self._look_again(node)
        if self._detours:
            self.healed()

    def _look_again(self, node: PeerId) -> None:
        """Who came or went in the moment before the node was known: it is told of the others from now on only."""
        dead = self._dead[node]
        news = tuple(m for m in self._members if m != node and (m in dead) is self._reach(node, m))
        if news:
            self._judge_after(self._costs.detection, node, news)

    def _forget(self, node: PeerId) -> None:
        self._members.remove(node)
        self._finished.append(node)
        self._alive.clear()
        for observer in self._observers():
            self._dead[observer].discard(node)
            self._notice(observer, (node,))
        if self._detours:
            self.divided()

    def _is_member(self, node: PeerId) -> bool:
        place = bisect_left(self._members, node)
        return place < len(self._members) and self._members[place] == node

    def _observers(self) -> list[PeerId]:
        return [m for m in self._members if m in self._dead]
