"""SWIM with Lifeguard's extensions as a sans-io state machine: packets and time in; packets, events, actions out.

It is deterministic: the same inputs and random seed give the same outputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import replace
from random import Random

from pfl_node.membership.admission import Admission, Admissions
from pfl_node.membership.candidates import Candidates
from pfl_node.membership.member import Member, Reachability, State, may_update
from pfl_node.membership.member_events import Action, FetchCredentials, Forged, MemberEvent, PingCall, Sync
from pfl_node.membership.packet import HEAD_BYTES, Kind, Packet, Rumor, member_bytes
from pfl_node.membership.prober import Outbox, Prober
from pfl_node.membership.record_check import RecordCheck, needs_proof
from pfl_node.membership.signatures import RENEWAL, UNSIGNED, Proof, Signatures
from pfl_node.membership.suspendable_clock import SuspendableClock
from pfl_node.membership.swim_config import SwimConfig
from pfl_node.membership.timers import Timers
from pfl_node.membership.view import View

CHALLENGES_LIMIT = 8  # members notified after one sync that they are considered dead
GOSSIP_DELAY = 0.05  # fraction of the gossip interval, so that simultaneous rumours are sent together
AMPLIFICATION_LIMIT = 4  # size limit of an answer to a non-member's address, as a multiple of the datagram's size
MOVES_LIMIT = 64  # members whose old addresses are checked at a time
LEAVE_NOTICES = 16  # members notified of a departure; they notify the rest


class Swim:
    """One member. After every input, drain `take_packets`, `take_events` and `take_actions`. Call `tick` at
    `next_wakeup`."""

    def __init__(self, me: Member, config: SwimConfig, rng: Random, signatures: Signatures = UNSIGNED) -> None:
        self._config = config
        self._signatures = signatures
        self._rng = rng
        self._seeds: tuple[str, ...] = ()
        self._joined = False
        self._gossiped_at = float("-inf")
        self._timers = Timers()
        self._time = SuspendableClock(slack=config.probe_timeout / 2, pause=config.pause)
        self._view = View(me, config, self._timers, rng, signatures)
        self._outbox = Outbox(self._view, self._time, config.packet_bytes)
        self._admissions = Admissions(self._view, config)
        self._candidates = Candidates(rng, 2 * config.probe_interval, config.candidates)
        self._prober = Prober(self._view, config, self._timers, self._time, self._outbox)
        self._moves: dict[str, tuple[Rumor, str]] = {}  # rumours of new addresses while the old ones are checked

    @property
    def me(self) -> Member:
        return self._view.me

    @property
    def health(self) -> int:
        return self._view.health.score

    @property
    def pauses(self) -> int:
        return self._time.pauses

    @property
    def heard(self) -> Set[str]:
        return self._view.heard

    def members(self) -> list[Member]:
        return [self._view.me, *self._view.roster.all()]

    def get(self, member: str) -> Member | None:
        return self._view.find(member)

    def to_verify(self, members: Iterable[Member]) -> Iterator[Member]:
        """The members of a list whose signatures `merge` would verify. A caller may verify them in small batches
        first: the results are cached."""
        if self._signatures.required:
            yield from (m for m in members if needs_proof(self._view, m, self._time.now))

    def take_packets(self) -> list[tuple[str, Packet]]:
        taken, self._outbox.packets = self._outbox.packets, []
        return taken

    def take_events(self) -> list[MemberEvent]:
        taken, self._view.events = self._view.events, []
        return taken

    def take_actions(self) -> list[Action]:
        taken, self._outbox.actions = self._outbox.actions, []
        return taken

    def next_wakeup(self) -> float | None:
        when = self._timers.next()
        return None if when is None else self._time.to_real(when)

    # inputs

    def start(self, now: float, *, address: str | None = None, seeds: Sequence[str] = ()) -> None:
        """Begin to probe. Sync with the `seeds` is retried while no member is known at their addresses."""
        self._view.change_me(address=self.me.address if address is None else address)
        if self._signatures.required:
            self._timers.set(("renew", 0), now + RENEWAL)
        self._seeds = tuple(seeds)
        self._joined = not self._seeds
        self._time.start(now)
        self._timers.set(("probe", 0), now + self._rng.uniform(0, self._config.probe_interval))
        # Sync early: if many nodes start at once, the seed knew few of them when it answered.
        self._timers.set(("sync", 0), now + self._rng.uniform(0.2, 0.4) * self._config.sync_interval)
        self._view.announce()

    def set_round(self, number: int) -> None:
        if number != self.me.round:
            self._view.change_me(round=number)

    def set_reachability(self, reachability: Reachability, relays: Sequence[str], now: float) -> None:
        """Set whether others can connect to this member; a change is gossiped with a higher incarnation."""
        if (reachability, tuple(relays)) != (self.me.reachability, self.me.relays):
            self._wake(now)
            self._view.restate(reachability=reachability, relays=tuple(relays))
            self._arm_gossip()

    def move(self, address: str, now: float) -> None:
        """This member's address has changed."""
        if address != self.me.address:
            self._wake(now)
            self._view.restate(address=address)
            self._arm_gossip()

    def ask(self, members: Iterable[str], now: float) -> None:
        """Ping these members out of turn: their answers carry their rounds."""
        self._wake(now)
        for member in map(self._view.roster.get, members):
            if member is not None and member.state.present:
                self._prober.ping(member)

    def tick(self, now: float) -> None:
        self._wake(now)
        for kind, key in self._timers.due(self._time.now):
            self._fire(kind, key)
        self._arm_gossip()

    def receive(self, packet: Packet, source: str, now: float, size: int | None = None) -> None:
        """`size` is the number of bytes of a datagram; None if the packet was received as a call."""
        self._wake(now)
        sender = packet.sender
        if self.me.state is State.LEFT or sender.id == self.me.id or sender.state in (State.SUSPECT, State.DEAD):
            return
        proven = self._config.proven or self._candidates.answered(packet)
        known = self._view.roster.get(sender.id) is not None
        by = sender.id if known or proven else source.rpartition(":")[0]
        check = self._check()
        self._learn(check, Rumor(sender), by, proven=proven, own=True)
        for rumor in packet.rumors:
            self._learn(check, rumor, by)
        self._view.refute(self._time.now)
        self._report_forgery(check, by)
        if check.unknown:
            self._outbox.actions.append(FetchCredentials(sender.dial_address, by, tuple(check.unknown)))
        if sender.state is State.ALIVE:
            self._answer(packet, source, self._answer_limit(sender, source, size))
        self._arm_gossip()

    def merge(self, members: Iterable[Member], now: float, *, by: str, joining: bool = False) -> None:
        """Merge the member list of `by`. A list received on joining is not gossiped: everyone else has it. Members
        whose keys are not known are left out."""
        self._wake(now)
        if self.me.state is State.LEFT:
            return
        self._joined = self._joined or joining
        challenges, check = 0, self._check()
        for member in members:
            known = self._view.roster.get(member.id)
            if known is not None and not may_update(member, known):
                continue
            proven = joining or (self._config.proven and member.id == by)
            self._learn(check, Rumor(member, by), by, proven=proven, own=member.id == by, spread=not joining)
            if member.state is State.ALIVE and challenges < CHALLENGES_LIMIT and self._challenge(member):
                challenges += 1
        self._view.refute(self._time.now)
        self._report_forgery(check, by)
        self._arm_gossip()

    def learn(self, fetched: FetchCredentials, now: float) -> None:
        """Process rumours again whose keys were unknown when their message arrived."""
        self._wake(now)
        if self.me.state is State.LEFT:
            return
        check = self._check()
        for rumor in fetched.rumors:
            self._learn(check, rumor, fetched.by)
        self._view.refute(self._time.now)
        self._report_forgery(check, fetched.by)
        self._arm_gossip()

    def admit(self, newcomer: Member, now: float) -> Admission:
        self._wake(now)
        if self._signatures.required and self._signatures.verify(newcomer) is not Proof.GENUINE:
            return Admission(False, f"the record of {newcomer.id} is not signed with its key")
        admission, holder = self._admissions.ask(newcomer, self._time.now)
        if admission.accepted:
            self._learn(self._check(), Rumor(newcomer), "", proven=self._config.proven, own=True)
        if holder is not None:
            self._prober.ping(holder)
        self._arm_gossip()
        return admission

    def leave(self, now: float) -> None:
        """Notify some members, which notify the rest, and ignore all further input."""
        self._wake(now)
        if self.me.state is State.LEFT:
            return
        self._view.change_me(state=State.LEFT)
        for member in self._view.roster.draw(LEAVE_NOTICES, anyone=self._config.transport == "udp"):
            self._outbox.send(member.dial_address, Kind.GOSSIP, to=member)
        self._timers.clear()

    # reactions

    def _check(self) -> RecordCheck:
        return RecordCheck(self._view, self._signatures, self._time.now)

    def _learn(
        self,
        check: RecordCheck,
        heard: Rumor,
        source: str,
        *,
        proven: bool = False,
        own: bool = False,
        spread: bool = True,
    ) -> None:
        """Process a rumour. A member that would be new, or at a new address, is pinged and has to answer first,
        unless it signed the record recently or it is `proven` that the member itself sent it."""
        rumor, now = check.trusted(heard), self._time.now
        if rumor is None:
            return
        if not rumor.by:
            rumor = replace(rumor, by=source)
        member = rumor.member
        if proven or not self._view.is_new(member, now) or self._signatures.fresh(member):
            self._view.learn(rumor, now, spread=spread, own=own)
        elif not self._may_move(rumor, source):
            return
        elif (seq := self._candidates.ask(member, source, now)) is not None:
            ping = Packet(Kind.PING, self.me, seq, member.id)
            self._outbox.packets.append((member.dial_address, ping))
            if self._config.transport == "udp" and self._candidates.silent(member):
                self._outbox.actions.append(PingCall(member.dial_address, ping))

    def _may_move(self, rumor: Rumor, source: str) -> bool:
        """A member that is present moves only if its old address is silent, which is checked first. Otherwise
        anyone who answers at another address could move it, faster than it can refute."""
        member = rumor.member
        known = self._view.roster.get(member.id)
        if known is None or not known.state.present or self._signatures.required:
            return True
        admission, holder = self._admissions.ask(member, self._time.now)
        if holder is not None and member.id not in self._moves and len(self._moves) < MOVES_LIMIT:
            self._moves[member.id] = (rumor, source)
            self._ping_holder(holder)
        return admission.accepted

    def _ping_holder(self, holder: Member) -> None:
        """Ping the old address several times, and also by a call: one lost datagram must not let an attacker move
        a member."""
        seq = self._prober.ping(holder)
        if self._config.transport == "udp":
            ping = Packet(Kind.PING, self.me, seq, holder.id)
            self._outbox.actions.append(PingCall(holder.dial_address, ping))
        self._timers.set(("move", holder.id), self._time.now + self._config.probe_timeout / 2)

    def _move(self, member: str) -> None:
        rumor, source = self._moves[member]
        holder = self._admissions.ask(rumor.member, self._time.now)[1]
        if holder is not None:
            self._ping_holder(holder)
            return
        del self._moves[member]
        self._learn(self._check(), rumor, source)

    def _report_forgery(self, check: RecordCheck, by: str) -> None:
        if check.forged is not None:
            self._view.events.append(Forged(check.forged, by))

    def _wake(self, now: float) -> None:
        if self._time.wake(now, self._timers.next()):
            self._view.health.add(1)

    def _fire(self, kind: str, key: str | int) -> None:
        match kind:
            case "probe":
                self._prober.next()
            case "indirect":
                self._prober.ask_relays()
            case "relay":
                self._prober.give_up_relay(int(key))
            case "suspicion" if self._time.lenient:
                self._timers.set((kind, key), self._time.lenient_until)
            case "suspicion":
                self._view.expire(str(key), self._time.now)
            case "refute":
                self._view.refute(self._time.now)
            case "forget":
                self._view.forget(str(key), self._time.now)
            case "gossip":
                self._gossip()
            case "sync":
                self._request_syncs()
            case "move":
                self._move(str(key))
            case "renew":
                self._view.change_me()
                self._timers.set(("renew", 0), self._time.now + RENEWAL)

    def _answer_limit(self, sender: Member, source: str, size: int | None) -> int | None:
        """The size limit of an answer in bytes: the source address of a datagram can be forged."""
        known = self._view.roster.get(sender.id)
        if size is None or (known is not None and known.state.present and known.address == source):
            return None
        return AMPLIFICATION_LIMIT * size

    def _answer(self, packet: Packet, source: str, limit: int | None) -> None:
        sender = packet.sender
        match packet.kind:
            case Kind.PING if limit is not None and limit < HEAD_BYTES + member_bytes(self.me):
                return
            case Kind.PING if packet.target in ("", self.me.id):
                self._outbox.send(source, Kind.ACK, seq=packet.seq, to=sender, target=self.me.id, limit=limit)
            case Kind.PING:  # meant for a previous member at this address
                self._outbox.send(source, Kind.GOSSIP, to=sender, limit=limit)
            case Kind.PING_REQ:
                self._prober.relay(packet, source)
            case Kind.ACK:
                self._admissions.answered(sender)
                self._prober.acknowledge(packet)
                self._challenge(sender)
            case Kind.NACK:
                self._prober.nack(packet)
            case Kind.GOSSIP:
                self._challenge(sender)

    def _challenge(self, member: Member) -> bool:
        """Notify a live member that is considered dead, or in a later round than it is, so that it can refute."""
        rumor = self._view.rumor_to_refute(member, self._time.now)
        if rumor is None or rumor.member.state is State.SUSPECT:
            return False
        self._outbox.send(member.dial_address, Kind.GOSSIP, to=member, limit=0)
        return True

    def _arm_gossip(self) -> None:
        if len(self._view.rumors) and self._view.roster.present and ("gossip", 0) not in self._timers:
            interval = self._config.gossip_interval
            when = max(self._time.now + GOSSIP_DELAY * interval, self._gossiped_at + interval)
            self._timers.set(("gossip", 0), when)

    def _gossip(self) -> None:
        self._gossiped_at = self._time.now
        for member in self._view.roster.draw(self._config.gossip_fanout):
            if not len(self._view.rumors):
                return
            self._outbox.send(member.dial_address, Kind.GOSSIP, to=member)

    def _request_syncs(self) -> None:
        """Sync with one live member, and with one dead member or seed, so that partitions heal."""
        self._timers.set(("sync", 0), self._time.now + self._rng.uniform(0.9, 1.1) * self._config.sync_interval)
        if not self._joined:  # Join checks that the id is unique, Sync does not
            return
        partners = self._view.roster.draw(1, anyone=self._config.transport == "udp")
        self._outbox.actions.extend(Sync(member.dial_address) for member in partners)
        members = self._view.roster.all()
        taken = {m.dial_address for m in members if m.state.present} | {self.me.address}
        lost = {m.dial_address: None for m in members if m.state is State.DEAD} | dict.fromkeys(self._seeds)
        retry = [address for address in lost if address not in taken]
        if retry:
            self._outbox.actions.append(Sync(self._rng.choice(retry)))
