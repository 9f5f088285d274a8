"""A member's beliefs about the others and itself: rumours in, events and rumours out. Sans-io."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from pfl_node.membership.broadcasts import Broadcasts
from pfl_node.membership.formulas import (
    confirmations_wanted,
    retransmissions,
    suspicion_bounds,
    suspicion_timeout,
)
from pfl_node.membership.member import Member, Reachability, State, merge, plausible, supersedes
from pfl_node.membership.member_events import Changed, Clashed, Died, Joined, Left, MemberEvent, Suspected
from pfl_node.membership.packet import Rumor
from pfl_node.membership.roster import Roster
from pfl_node.membership.signatures import Signatures
from pfl_node.membership.swim_config import SwimConfig
from pfl_node.membership.timers import Timers

ROUNDS_AHEAD = 16  # how far a rumoured round may be ahead of mine, until the member reports its own
DEATHS_WANTED = 3  # members that have to consider a member dead before its suspicion times out here
SILENCE = 180.0  # seconds; a member signs its record again every 120 s
SUSPICION_DOUBT = 3  # health score at which suspicions stop growing: a dead member must be detected
CLASHES_REPORTED = 3  # a previous process of this node at another address can look like a clash once or twice


@dataclass(slots=True)
class Suspicion:
    since: float
    wanted: int
    shortest: float
    longest: float
    accusers: set[str] = field(default_factory=set)
    dead_by: set[str] = field(default_factory=set)  # members that consider it dead

    def confirm(self, by: str) -> bool:
        """Add an accuser; False if it does not shorten the timeout."""
        if by in self.accusers or len(self.accusers) > self.wanted:
            return False
        self.accusers.add(by)
        return True

    @property
    def until(self) -> float:
        confirmed = len(self.accusers) - 1
        return self.since + suspicion_timeout(confirmed, self.wanted, self.shortest, self.longest)


class Health:
    """Lifeguard's local health multiplier: a slow process waits longer before it suspects others. 0 is healthy."""

    def __init__(self, limit: int) -> None:
        self.score = 0
        self._limit = limit

    def add(self, change: int) -> None:
        self.score = min(max(self.score + change, 0), self._limit)

    def stretch(self, seconds: float) -> float:
        return seconds * (self.score + 1)

    @property
    def suspicion_factor(self) -> int:
        """The factor by which a suspicion lasts longer, because this process may be the reason for the silence."""
        return min(self.score, SUSPICION_DOUBT) + 1


class View:
    def __init__(
        self, me: Member, config: SwimConfig, timers: Timers, rng: Random, signatures: Signatures
    ) -> None:
        self.me = me
        self._signatures = signatures
        self.rumors = Broadcasts()
        self.health = Health(config.health_limit)
        self.events: list[MemberEvent] = []
        self.roster = Roster(me.id, rng, limit=config.members_limit, neighbours=config.neighbours)
        self._config = config
        self._timers = timers
        self.heard: set[str] = set()  # members that have reported about themselves
        self._news: dict[str, float] = {}  # when something new about each unreachable member was learned
        self._suspicions: dict[str, Suspicion] = {}
        self._accusation: Member | None = None  # the false rumour about this member with the highest incarnation
        self._refuted_at = float("-inf")
        self._clashes = 0
        self._clashed_at = float("-inf")

    @property
    def size(self) -> int:
        """The number of members that are present, this one included."""
        return self.roster.present + 1

    def find(self, member: str) -> Member | None:
        return self.me if member == self.me.id else self.roster.get(member)

    def change_me(self, **changes: Any) -> None:
        """Change this member's own record and sign it."""
        self.me = self._signatures.sign(replace(self.me, **changes))

    def restate(self, **changes: Any) -> None:
        """Change facts of this member's record that are fixed within an incarnation, and gossip them."""
        self.change_me(**{"incarnation": self.me.incarnation + 1, **changes})
        self.announce()
        self.events.append(Changed(self.me))

    def take_rumors(self, budget: int) -> tuple[Rumor, ...]:
        """Rumours for one packet, without those about this member: it is the packet's sender."""
        taken = self.rumors.take(budget, retransmissions(self.size, self._config.retransmit))
        return tuple(rumor for rumor in taken if rumor.member.id != self.me.id)

    def rumor_to_refute(self, member: Member, now: float) -> Rumor | None:
        """The rumour that a member has to refute: that it is suspected, dead or in a later round than it is."""
        known = self.roster.get(member.id) or self.roster.tombstone(member.id, now)
        if known is None or known.incarnation < member.incarnation:
            return None
        if known.state is State.ALIVE and known.round <= member.round:
            return None
        return Rumor(known)

    def is_new(self, member: Member, now: float) -> bool:
        """Would this rumour add the member, or move it to another address?"""
        known = self.roster.get(member.id)
        if member.id == self.me.id or not member.state.present:
            return False
        if known is not None:
            return member.address != known.address and member.incarnation > known.incarnation
        tombstone = self.roster.tombstone(member.id, now)
        return tombstone is None or supersedes(member, tombstone)

    def learn(self, rumor: Rumor, now: float, *, spread: bool = True, own: bool = False) -> None:
        """Process a rumour and, with `spread`, gossip it if it is new. `own`: the member itself sent it."""
        new = rumor.member
        old = self.find(new.id)
        if not plausible(new.incarnation, old.incarnation if old else 0):
            return
        if new.id == self.me.id:
            self._check_own(new, now)
            return
        if not own and not new.seal and new.state.present and new.round > self.me.round + ROUNDS_AHEAD:
            new = replace(new, round=self.me.round + ROUNDS_AHEAD)
            rumor = replace(rumor, member=new)
        if old is None:
            self._meet(rumor, now, spread)
        else:
            new = self._downgrade_to_suspect(old, new, rumor.by)
            if new.state is old.state is State.SUSPECT and new.incarnation == old.incarnation:
                self._confirm(old, rumor.by, now)
            merged = merge(old, new)
            if merged is not old:
                self._replace(old, merged, rumor.by, now, spread)
            if (own or merged is not old) and merged.reachability is Reachability.UNREACHABLE:
                self._news[new.id] = now
        if own and self.roster.get(new.id) is not None:
            self.heard.add(new.id)

    def _downgrade_to_suspect(self, old: Member, new: Member, by: str) -> Member:
        """A rumour that a member is dead makes it suspected here, so that it can refute the rumour, until the
        suspicion times out or several members report its death."""
        if new.state is not State.DEAD or not old.state.present or new.incarnation < old.incarnation:
            return new
        suspicion = self._suspicions.get(old.id) if new.incarnation == old.incarnation else None
        if suspicion is not None:
            suspicion.dead_by.add(by)
        if by == self.me.id or (suspicion is not None and len(suspicion.dead_by) >= DEATHS_WANTED):
            return new
        return replace(new, state=State.SUSPECT)

    def accuse(self, target: str, now: float) -> None:
        known = self.roster.get(target)
        if known is not None and known.state.present:
            self.learn(Rumor(replace(known, state=State.SUSPECT), by=self.me.id), now)

    def accuse_if_silent(self, target: Member, now: float) -> None:
        """Suspect an unreachable member that has not reported for long: it cannot be pinged."""
        if now - self._news.setdefault(target.id, now) > SILENCE:
            self.accuse(target.id, now)

    def expire(self, target: str, now: float) -> None:
        known = self.roster.get(target)
        if known is not None and known.state is State.SUSPECT:
            self.learn(Rumor(replace(known, state=State.DEAD), by=self.me.id), now)

    def forget(self, target: str, now: float) -> None:
        known = self.roster.get(target)
        if known is not None and not known.state.present:
            self.rumors.drop(target)
            self.heard.discard(target)
            self._news.pop(target, None)
            self.roster.add_tombstone(known, now + self._config.tombstone)

    def announce(self) -> None:
        self.rumors.put(Rumor(self.me))

    def _meet(self, rumor: Rumor, now: float, spread: bool) -> None:
        new = rumor.member
        tombstone = self.roster.tombstone(new.id, now)
        if tombstone is not None and not supersedes(new, tombstone):
            return
        if not new.state.present:  # keep a tombstone only: listed, dead members would be gossiped forever
            self.roster.add_tombstone(new, now + self._config.tombstone)
            return
        fresh = new if new.state is State.ALIVE else replace(new, state=State.ALIVE)
        if not self.roster.put(fresh):
            return
        self.roster.remove_tombstone(new.id)
        self.events.append(Joined(fresh))
        if spread:
            self.rumors.put(Rumor(fresh))
        if new.state is State.SUSPECT:
            self.learn(rumor, now, spread=spread)

    def _replace(self, old: Member, new: Member, by: str, now: float, spread: bool) -> None:
        self.roster.put(new)
        if supersedes(new, old):
            self._follow(old, new, by, now)
            if spread:
                self.rumors.put(Rumor(new, by if new.state is State.SUSPECT else ""))

    def _follow(self, old: Member, new: Member, by: str, now: float) -> None:
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
                if not old.state.present:  # the rumour implies both its return and the suspicion
                    self.events.append(Joined(replace(new, state=State.ALIVE)))
                self._suspect(new, by, now)
                self.events.append(Suspected(new))
            case State.DEAD | State.LEFT:
                self._timers.set(("forget", new.id), now + self._config.forget)
                self.events.append(Died(new) if new.state is State.DEAD else Left(new))

    def _suspect(self, member: Member, by: str, now: float) -> None:
        interval = self._config.probe_interval * self.health.suspicion_factor
        shortest, longest = suspicion_bounds(self.size, self._config.suspicion, interval)
        wanted = confirmations_wanted(self.size, self._config.suspicion)
        suspicion = self._suspicions[member.id] = Suspicion(now, wanted, shortest, longest, {by})
        self._timers.set(("suspicion", member.id), suspicion.until)

    def _confirm(self, member: Member, by: str, now: float) -> None:
        suspicion = self._suspicions.get(member.id)
        if suspicion is not None and suspicion.confirm(by):
            self._timers.set(("suspicion", member.id), max(suspicion.until, now))
            self.rumors.put(Rumor(member, by))

    def refute(self, now: float) -> None:
        """Refute the false rumours of a message together, by a higher incarnation, and at most once per gossip
        interval."""
        accusation = self._accusation
        if accusation is None:
            return
        if now < (earliest := self._refuted_at + self._config.gossip_interval):
            self._timers.set(("refute", 0), earliest)
            return
        self._refuted_at, self._accusation = now, None
        if accusation.address == self.me.address and accusation.state in (State.SUSPECT, State.DEAD):
            self.health.add(1)
        self.restate(incarnation=max(self.me.incarnation, accusation.incarnation) + 1)

    def _check_own(self, new: Member, now: float) -> None:
        """Note a false rumour about this member, for `refute`."""
        mine = new.address == self.me.address
        if self.me.state is State.LEFT or new.incarnation < self.me.incarnation:
            return
        forged = new.round > self.me.round  # or sent by a previous process of this node
        if new.state is State.ALIVE and mine and new.incarnation == self.me.incarnation and not forged:
            return
        if not mine and not self._handle_id_clash(new, now):
            return
        if self._accusation is None or new.incarnation >= self._accusation.incarnation:
            self._accusation = new

    def _handle_id_clash(self, other: Member, now: float) -> bool:
        """This id at another address: a previous process of this node, or another node with the same id. Refute at
        most once per probe interval, or two such nodes would refute each other without end."""
        if now - self._clashed_at < self._config.probe_interval:
            return False
        self._clashed_at = now
        self._clashes += 1
        if self._clashes >= CLASHES_REPORTED:
            self.events.append(Clashed(other))
        return True
