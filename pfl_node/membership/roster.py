"""A bounded table of the other members, their probe order, random samples, and tombstones."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import replace
from random import Random

from pfl_node.membership.formulas import fingers
from pfl_node.membership.member import Member, Reachability, State


class Roster:
    """With `neighbours`, only that many members are probed and sampled."""

    def __init__(self, me: str, rng: Random, *, limit: int, neighbours: int | None = None) -> None:
        self._me = me
        self._rng = rng
        self._limit = limit
        self._neighbours = neighbours
        self._members: dict[str, Member] = {}
        self._present: list[str] = []
        self._silent: set[str] = set()  # members that cannot be called
        self._active: list[str] | None = None  # members to probe and sample; None: to be recomputed
        self._queue: list[str] = []  # members to probe, last first
        self._queued: set[str] = set()
        self._tombs: OrderedDict[str, tuple[Member, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._members)

    def get(self, member: str) -> Member | None:
        return self._members.get(member)

    def all(self) -> list[Member]:
        return list(self._members.values())

    @property
    def present(self) -> int:
        return len(self._present)

    @property
    def tombs(self) -> int:
        return len(self._tombs)

    def put(self, member: Member) -> bool:
        """Insert or update a member; False if it is new and the table is full."""
        old = self._members.get(member.id)
        if old is None and len(self._members) >= self._limit:
            return False
        self._members[member.id] = member
        (self._silent.add if _silent(member) else self._silent.discard)(member.id)
        was_present = old is not None and old.state.present
        if member.state.present and not was_present:
            self._present.append(member.id)
            self._active = None
            if member.id not in self._queued:
                self._queue.insert(self._rng.randrange(len(self._queue) + 1), member.id)
                self._queued.add(member.id)
        elif was_present and not member.state.present:
            self._present.remove(member.id)
            self._active = None
        return True

    def add_tombstone(self, member: Member, until: float) -> None:
        """Replace a member by a tombstone, which rejects old rumours; the oldest tombstones are dropped."""
        self._silent.discard(member.id)
        if self._members.pop(member.id, None) is not None and member.id in self._present:
            self._present.remove(member.id)
            self._active = None
        gone = member if not member.state.present else replace(member, state=State.DEAD)
        self._tombs[member.id] = (gone, until)
        self._tombs.move_to_end(member.id)
        while len(self._tombs) > self._limit:
            self._tombs.popitem(last=False)

    def remove_tombstone(self, member: str) -> None:
        self._tombs.pop(member, None)

    def tombstone(self, member: str, now: float) -> Member | None:
        while self._tombs and next(iter(self._tombs.values()))[1] <= now:
            self._tombs.popitem(last=False)
        return self._tombs[member][0] if member in self._tombs else None

    def next_target(self) -> Member | None:
        """Round-robin, in an order that is shuffled for each cycle."""
        for _ in range(2):
            while self._queue:
                candidate = self._queue.pop()
                self._queued.discard(candidate)
                member = self._members.get(candidate)
                if member and member.state.present and self._is_active(candidate):
                    return member
            self._queue = list(self._actives())
            self._queued.update(self._queue)
            self._rng.shuffle(self._queue)
        return None

    def draw(self, count: int, without: Collection[str] = (), *, anyone: bool = False) -> list[Member]:
        """Up to `count` different neighbours, or with `anyone` members, that are present and can be called,
        uniformly at random."""
        pool = self._present if anyone else self._actives()
        if self._silent:
            without = {*without, *self._silent}
        if len(pool) <= 2 * (count + len(without)):
            chosen = [i for i in pool if i not in without]
            self._rng.shuffle(chosen)
            return [self._members[i] for i in chosen[:count]]
        drawn: dict[str, None] = {}
        while len(drawn) < count:
            candidate = pool[self._rng.randrange(len(pool))]
            if candidate not in without:
                drawn[candidate] = None
        return [self._members[i] for i in drawn]

    def _is_active(self, member: str) -> bool:
        return self._neighbours is None or member in self._actives()

    def _actives(self) -> list[str]:
        if self._neighbours is None:
            return self._present
        if self._active is None:
            self._active = fingers(self._me, self._present, self._neighbours)
        return self._active


def _silent(member: Member) -> bool:
    return member.reachability is Reachability.UNREACHABLE and member.state.present
