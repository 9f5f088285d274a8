"""SWIM with Lifeguard's ideas as a state machine: packets and the time in, packets, events and wishes out.

It knows no socket, no clock and no chance of its own: same inputs, same outputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from random import Random

from pfl_node.membership.admission import Admission, Admissions
from pfl_node.membership.config import SwimConfig
from pfl_node.membership.events import Event, Sync
from pfl_node.membership.member import Member, State
from pfl_node.membership.outbox import Outbox
from pfl_node.membership.owntime import OwnTime
from pfl_node.membership.packet import Kind, Packet, Rumor
from pfl_node.membership.timers import Timers
from pfl_node.membership.view import View

RELAYS_LIMIT = 64  # pings made for others at the same time
CHALLENGES_LIMIT = 8  # members told, after one exchange, that they are taken for gone
RELAY_SHARE = 0.6  # of the probe timeout: what a relay waits, so that its answer is back before the asker judges
GOODBYES = 5  # times the gossip fanout
GOSSIP_DELAY = 0.05  # of the gossip interval: news of one moment go out together


@dataclass(slots=True)
class Probe:
    """The member whose answer is awaited."""

    seq: int
    target: Member
    asked: int = 0  # relays
    nacks: int = 0  # relays that answered, but not with the target's answer


@dataclass(frozen=True, slots=True)
class Relay:
    """A ping made for somebody else."""

    address: str
    seq: int
    target: str


class Swim:
    """One member. After every input drain `take_packets`, `take_events`, `take_wishes`; tick at `next_wakeup`."""

    def __init__(self, me: Member, config: SwimConfig, rng: Random) -> None:
        self._config = config
        self._rng = rng
        self._timers = Timers()
        self._view = View(me, config, self._timers, rng)
        self._admissions = Admissions(self._view, config)
        self._time = OwnTime(slack=config.probe_timeout / 2, pause=config.pause)
        self._outbox = Outbox(self._view, self._time, config.packet_bytes)
        self._wishes: list[Sync] = []
        self._seeds: tuple[str, ...] = ()
        self._seq = 0
        self._probe: Probe | None = None
        self._relays: dict[int, Relay] = {}
        self._gossiped_at = float("-inf")

    @property
    def me(self) -> Member:
        return self._view.me

    @property
    def health(self) -> int:
        """0 is well; higher: I am slow myself, and take more time to judge others."""
        return self._view.health.score

    def members(self) -> list[Member]:
        """Everybody known and me."""
        return [self._view.me, *self._view.roster.all()]

    def get(self, member: str) -> Member | None:
        return self._view.me if member == self._view.me.id else self._view.roster.get(member)

    def take_packets(self) -> list[tuple[str, Packet]]:
        return self._outbox.take()

    def take_events(self) -> list[Event]:
        taken, self._view.events = self._view.events, []
        return taken

    def take_wishes(self) -> list[Sync]:
        taken, self._wishes = self._wishes, []
        return taken

    def next_wakeup(self) -> float | None:
        when = self._timers.next()
        return None if when is None else self._time.outside(when)

    # inputs

    def start(self, now: float, *, address: str | None = None, seeds: Sequence[str] = ()) -> None:
        """Begin to probe. `seeds` are addresses tried again whenever no member is known there."""
        if address is not None:
            self._view.me = replace(self._view.me, address=address)
        self._seeds = tuple(seeds)
        self._time.start(now)
        self._timers.set(("probe", 0), now + self._rng.uniform(0, self._config.probe_interval))
        self._timers.set(("sync", 0), now + self._rng.uniform(0.2, 0.4) * self._config.sync_interval)
        self._view.announce()

    def set_round(self, number: int) -> None:
        """Others hear of it in my next packets."""
        self._view.me = replace(self._view.me, round=number)

    def tick(self, now: float) -> None:
        self._wake(now)
        for kind, key in self._timers.due(self._now):
            self._fire(kind, key)
        self._arm_gossip()

    def receive(self, packet: Packet, source: str, now: float) -> None:
        self._wake(now)
        sender = packet.sender
        if self.me.state is State.LEFT or sender.id == self.me.id or sender.state in (State.SUSPECT, State.DEAD):
            return
        self._view.learn(Rumor(sender), self._now)
        for rumor in packet.rumors:
            self._view.learn(rumor, self._now)
        if sender.state is State.ALIVE:
            self._answer(packet, source)
        self._arm_gossip()

    def merge(self, members: Iterable[Member], now: float, *, by: str, joining: bool = False) -> None:
        """Take in all that the member `by` knows. What is heard on joining is news to nobody but me."""
        self._wake(now)
        if self.me.state is State.LEFT:
            return
        challenges = 0
        for member in members:
            known = self._view.roster.get(member.id)
            if known is not None and known.state.present and member.state is State.DEAD:
                # Two halves of a swarm that took each other for dead meet again: let everybody refute.
                member = replace(member, state=State.SUSPECT)
            self._view.learn(Rumor(member, by), self._now, spread=not joining)
            if member.state is State.ALIVE and challenges < CHALLENGES_LIMIT and self._challenge(member):
                challenges += 1
        self._arm_gossip()

    def admit(self, newcomer: Member, now: float) -> Admission:
        """Somebody asks to join."""
        self._wake(now)
        admission, check = self._admissions.ask(newcomer, self._now)
        if admission.accepted:
            self._view.learn(Rumor(newcomer), self._now)
        if check is not None:
            self._outbox.send(check.address, Kind.PING, seq=self._next_seq(), to=check, target=check.id)
        self._arm_gossip()
        return admission

    def leave(self, now: float) -> None:
        """Say goodbye to a few, who tell the rest. Nothing is heard or said after that."""
        self._wake(now)
        if self.me.state is State.LEFT:
            return
        self._view.me = replace(self.me, state=State.LEFT)
        for member in self._view.roster.draw(GOODBYES * self._config.gossip_fanout):
            self._outbox.send(member.address, Kind.GOSSIP, to=member)
        self._timers.clear()

    # time

    @property
    def _now(self) -> float:
        return self._time.now

    def _wake(self, now: float) -> None:
        self._time.wake(now, self._timers.next())

    def _fire(self, kind: str, key: str | int) -> None:
        match kind:
            case "probe":
                self._end_probe()
                self._begin_probe()
            case "indirect":
                self._ask_relays()
            case "relay":
                relay = self._relays.pop(int(key))
                self._outbox.send(relay.address, Kind.NACK, seq=relay.seq, target=relay.target)
            case "suspicion" if self._time.lenient:
                self._timers.set((kind, key), self._time.lenient_until)
            case "suspicion":
                self._view.expire(str(key), self._now)
            case "forget":
                self._view.forget(str(key), self._now)
            case "gossip":
                self._gossip()
            case "sync":
                self._wish_syncs()

    # probing

    def _begin_probe(self) -> None:
        health = self._view.health
        self._timers.set(("probe", 0), self._now + health.stretch(self._config.probe_interval))
        target = self._view.roster.next_target()
        if target is None:
            return
        self._probe = Probe(self._next_seq(), target)
        self._timers.set(("indirect", 0), self._now + health.stretch(self._config.probe_timeout))
        self._outbox.send(target.address, Kind.PING, seq=self._probe.seq, to=target, target=target.id)

    def _ask_relays(self) -> None:
        probe = self._probe
        if probe is None:
            return
        for relay in self._view.roster.draw(self._config.indirect, without=(probe.target.id,)):
            probe.asked += 1
            self._outbox.send(
                relay.address,
                Kind.PING_REQ,
                seq=probe.seq,
                to=relay,
                target=probe.target.id,
                place=probe.target.address,
            )

    def _end_probe(self) -> None:
        """The target has not answered."""
        probe, self._probe = self._probe, None
        if probe is None or self._time.lenient:
            return
        self._view.health.add(probe.asked - probe.nacks if probe.asked else 1)
        known = self._view.roster.get(probe.target.id)
        # A life that began while the old one was probed is not to blame.
        if known is not None and known.address == probe.target.address:
            self._view.accuse(known.id, self._now)

    def _answer(self, packet: Packet, source: str) -> None:
        sender = packet.sender
        match packet.kind:
            case Kind.PING if packet.target in ("", self.me.id):
                self._outbox.send(source, Kind.ACK, seq=packet.seq, to=sender, target=self.me.id)
            case Kind.PING:  # it takes me for somebody who was here before
                self._outbox.send(source, Kind.GOSSIP, to=sender)
            case Kind.PING_REQ:
                self._relay(packet, source)
            case Kind.ACK:
                self._acknowledge(packet)
            case Kind.NACK:
                if self._probe is not None and self._probe.seq == packet.seq:
                    self._probe.nacks = min(self._probe.nacks + 1, self._probe.asked)
            case Kind.GOSSIP:
                self._challenge(sender)

    def _acknowledge(self, packet: Packet) -> None:
        self._admissions.heard(packet.sender)
        relay = self._relays.get(packet.seq)
        if relay is not None and relay.target == packet.target == packet.sender.id:
            del self._relays[packet.seq]
            self._timers.cancel(("relay", packet.seq))
            self._outbox.send(relay.address, Kind.ACK, seq=relay.seq, target=relay.target)
        probe = self._probe
        if probe is not None and probe.seq == packet.seq and probe.target.id == packet.target:
            self._probe = None
            self._timers.cancel(("indirect", 0))
            self._view.health.add(-1)

    def _relay(self, packet: Packet, source: str) -> None:
        if len(self._relays) >= RELAYS_LIMIT or not packet.target_address:
            return
        seq = self._next_seq()
        self._relays[seq] = Relay(source, packet.seq, packet.target)
        self._timers.set(("relay", seq), self._now + RELAY_SHARE * self._config.probe_timeout)
        self._outbox.send(packet.target_address, Kind.PING, seq=seq, target=packet.target)

    # news

    def _challenge(self, member: Member) -> bool:
        """Tell one who shows signs of life that it is taken for gone."""
        verdict = self._view.verdict(member, self._now)
        if verdict is None or verdict.member.state is State.SUSPECT:
            return False
        self._outbox.send(member.address, Kind.GOSSIP, to=member)
        return True

    def _arm_gossip(self) -> None:
        if len(self._view.news) and self._view.roster.present and ("gossip", 0) not in self._timers:
            interval = self._config.gossip_interval
            when = max(self._now + GOSSIP_DELAY * interval, self._gossiped_at + interval)
            self._timers.set(("gossip", 0), when)

    def _gossip(self) -> None:
        self._gossiped_at = self._now
        for member in self._view.roster.draw(self._config.gossip_fanout):
            if not len(self._view.news):
                return
            self._outbox.send(member.address, Kind.GOSSIP, to=member)

    def _wish_syncs(self) -> None:
        """One who is there, and one who may be there again: so the halves of a split swarm find each other."""
        self._timers.set(("sync", 0), self._now + self._rng.uniform(0.9, 1.1) * self._config.sync_interval)
        self._wishes.extend(Sync(member.address) for member in self._view.roster.draw(1))
        members = self._view.roster.all()
        taken = {m.address for m in members if m.state.present} | {self.me.address}
        lost = {m.address: None for m in members if m.state is State.DEAD} | dict.fromkeys(self._seeds)
        retry = [address for address in lost if address not in taken]
        if retry:
            self._wishes.append(Sync(self._rng.choice(retry)))

    def _next_seq(self) -> int:
        self._seq += 1
        return self._seq
