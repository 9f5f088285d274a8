"""What one member believes of the others and itself: rumours in, events and rumours out. Knows no packets."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random

from pfl_node.membership.broadcasts import Broadcasts
from pfl_node.membership.formulas import (
    confirmations_wanted,
    retransmissions,
    suspicion_bounds,
    suspicion_timeout,
)
from pfl_node.membership.member import INCARNATION_LIMIT, Member, State, merge, supersedes
from pfl_node.membership.member_events import Changed, Clashed, Died, Joined, Left, MemberEvent, Suspected
from pfl_node.membership.packet import Rumor
from pfl_node.membership.roster import Roster
from pfl_node.membership.swim_config import SwimConfig
from pfl_node.membership.timers import Timers

CLASHES_TOLD = 3  # an earlier life of mine at another address can look like a clash once or twice


@dataclass(slots=True)
class Suspicion:
    since: float
    wanted: int
    shortest: float
    longest: float
    accusers: set[str] = field(default_factory=set)

    def confirm(self, by: str) -> bool:
        """A new and useful accuser?"""
        if by in self.accusers or len(self.accusers) > self.wanted:
            return False
        self.accusers.add(by)
        return True

    @property
    def until(self) -> float:
        confirmed = len(self.accusers) - 1
        return self.since + suspicion_timeout(confirmed, self.wanted, self.shortest, self.longest)


class Health:
    """Lifeguard's local health: how far my own slowness may be the reason that others seem silent. 0 is well."""

    def __init__(self, limit: int) -> None:
        self.score = 0
        self._limit = limit

    def add(self, change: int) -> None:
        self.score = min(max(self.score + change, 0), self._limit)

    def stretch(self, seconds: float) -> float:
        return seconds * (self.score + 1)


class View:
    def __init__(self, me: Member, config: SwimConfig, timers: Timers, rng: Random) -> None:
        self.me = me
        self.news = Broadcasts()
        self.health = Health(config.health_limit)
        self.events: list[MemberEvent] = []
        self.roster = Roster(me.id, rng, limit=config.members_limit, neighbours=config.neighbours)
        self._config = config
        self._timers = timers
        self._suspicions: dict[str, Suspicion] = {}
        self._clashes = 0
        self._clashed_at = float("-inf")

    @property
    def size(self) -> int:
        """All who are present, and me."""
        return self.roster.present + 1

    def take_news(self, budget: int) -> tuple[Rumor, ...]:
        """Rumours for one packet. I myself am in every packet anyway, as its sender."""
        taken = self.news.take(budget, retransmissions(self.size, self._config.retransmit))
        return tuple(rumor for rumor in taken if rumor.member.id != self.me.id)

    def verdict(self, member: Member, now: float) -> Rumor | None:
        """What it must hear because it is taken for gone, or nearly so, or for further than it says it is, and has
        not refuted yet."""
        known = self.roster.get(member.id) or self.roster.tomb(member.id, now)
        if known is None or known.incarnation < member.incarnation:
            return None
        if known.state is State.ALIVE and known.round <= member.round:
            return None
        return Rumor(known)

    def learn(self, rumor: Rumor, now: float, *, spread: bool = True) -> None:
        """Take a rumour in. With `spread` it is told on where it is news."""
        new = rumor.member
        if not 0 <= new.incarnation < INCARNATION_LIMIT:
            return
        if new.id == self.me.id:
            self._about_me(new, now)
            return
        old = self.roster.get(new.id)
        if old is None:
            self._meet(rumor, now, spread)
            return
        if new.state is old.state is State.SUSPECT and new.incarnation == old.incarnation:
            self._confirm(old, rumor.by, now)
        merged = merge(old, new)
        if merged is not old:
            self._replace(old, merged, rumor.by, now, spread)

    def accuse(self, target: str, now: float) -> None:
        """I could not reach it."""
        known = self.roster.get(target)
        if known is not None and known.state.present:
            self.learn(Rumor(replace(known, state=State.SUSPECT), by=self.me.id), now)

    def expire(self, target: str, now: float) -> None:
        """Its suspicion has lasted long enough."""
        known = self.roster.get(target)
        if known is not None and known.state is State.SUSPECT:
            self.learn(Rumor(replace(known, state=State.DEAD), by=self.me.id), now)

    def forget(self, target: str, now: float) -> None:
        """It has been gone for so long that it need not be listed any more."""
        known = self.roster.get(target)
        if known is not None and not known.state.present:
            self.news.drop(target)
            self.roster.bury(known, now + self._config.tombstone)

    def announce(self) -> None:
        self.news.put(Rumor(self.me))

    def _meet(self, rumor: Rumor, now: float, spread: bool) -> None:
        new = rumor.member
        tomb = self.roster.tomb(new.id, now)
        if tomb is not None and not supersedes(new, tomb):
            return
        if not new.state.present:  # not listed, or the gone would go round for ever; but remembered
            self.roster.bury(new, now + self._config.tombstone)
            return
        fresh = new if new.state is State.ALIVE else replace(new, state=State.ALIVE)
        if not self.roster.put(fresh):
            return
        self.roster.unbury(new.id)
        self.events.append(Joined(fresh))
        if spread:
            self.news.put(Rumor(fresh))
        if new.state is State.SUSPECT:
            self.learn(rumor, now, spread=spread)

    def _replace(self, old: Member, new: Member, by: str, now: float, spread: bool) -> None:
        self.roster.put(new)
        if supersedes(new, old):
            self._follow(old, new, by, now)
            if spread:
                self.news.put(Rumor(new, by if new.state is State.SUSPECT else ""))

    def _follow(self, old: Member, new: Member, by: str, now: float) -> None:
        """The timers and events of a change that is news."""
        if new.state is not State.SUSPECT or new.incarnation != old.incarnation:
            self._suspicions.pop(new.id, None)
            self._timers.cancel(("suspicion", new.id))
        match new.state:
            case State.ALIVE:
                self._timers.cancel(("forget", new.id))
                if not old.state.present:
                    self.events.append(Joined(new))
                elif replace(new, round=old.round, incarnation=old.incarnation) != old:
                    self.events.append(Changed(new))
            case State.SUSPECT:
                self._timers.cancel(("forget", new.id))
                if not old.state.present:  # its return and the doubt come in one rumour
                    self.events.append(Joined(replace(new, state=State.ALIVE)))
                self._suspect(new, by, now)
                self.events.append(Suspected(new))
            case State.DEAD | State.LEFT:
                self._timers.set(("forget", new.id), now + self._config.forget)
                self.events.append(Died(new) if new.state is State.DEAD else Left(new))

    def _suspect(self, member: Member, by: str, now: float) -> None:
        shortest, longest = suspicion_bounds(self.size, self._config.suspicion, self._config.probe_interval)
        wanted = confirmations_wanted(self.size, self._config.suspicion)
        suspicion = self._suspicions[member.id] = Suspicion(now, wanted, shortest, longest, {by})
        self._timers.set(("suspicion", member.id), suspicion.until)

    def _confirm(self, member: Member, by: str, now: float) -> None:
        suspicion = self._suspicions.get(member.id)
        if suspicion is not None and suspicion.confirm(by):
            self._timers.set(("suspicion", member.id), max(suspicion.until, now))
            self.news.put(Rumor(member, by))

    def _about_me(self, new: Member, now: float) -> None:
        """Whatever is not true of me I refute with a higher incarnation."""
        mine = new.address == self.me.address
        if self.me.state is State.LEFT or new.incarnation < self.me.incarnation:
            return
        forged = new.round > self.me.round  # or of a life before this one: nobody else can know my round
        if new.state is State.ALIVE and mine and new.incarnation == self.me.incarnation and not forged:
            return
        if not mine and not self._contest(new, now):
            return
        if new.incarnation + 1 >= INCARNATION_LIMIT:
            return
        self.me = replace(self.me, incarnation=new.incarnation + 1)
        if mine and (new.state is State.SUSPECT or new.state is State.DEAD):
            self.health.add(1)
        self.announce()
        self.events.append(Changed(self.me))

    def _contest(self, other: Member, now: float) -> bool:
        """My id at another address: my life before this one, or somebody who uses my id. Not more than one answer
        in an interval, or two of the same id would refute each other without a pause."""
        if now - self._clashed_at < self._config.probe_interval:
            return False
        self._clashed_at = now
        self._clashes += 1
        if self._clashes >= CLASHES_TOLD:
            self.events.append(Clashed(other))
        return True
