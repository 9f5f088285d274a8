"""Failure detection: pings one member at a time, indirectly through others if it does not answer. Sans-io."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

from pfl_node.membership.member import Member, Reachability
from pfl_node.membership.member_events import Action, PingCall
from pfl_node.membership.packet import HEAD_BYTES, Kind, Packet, member_bytes, rumor_bytes, width
from pfl_node.membership.suspendable_clock import SuspendableClock
from pfl_node.membership.swim_config import SwimConfig
from pfl_node.membership.timers import Timers
from pfl_node.membership.view import View

RELAYS_LIMIT = 64  # concurrent pings on behalf of others
RELAY_SHARE = 0.6  # fraction of the probe timeout: a relay's answer must arrive before the requester's own timeout


class Outbox:
    """Packets to send, each filled with as many rumours as fit into a datagram, and actions to perform."""

    def __init__(self, view: View, time: SuspendableClock, packet_bytes: int) -> None:
        self._view = view
        self._time = time
        self._bytes = packet_bytes
        self.packets: list[tuple[str, Packet]] = []
        self.actions: list[Action] = []

    def send(
        self,
        address: str,
        kind: Kind,
        *,
        seq: int = 0,
        to: Member | None = None,
        target: str = "",
        target_address: str = "",
        limit: int | None = None,
    ) -> None:
        """A rumour that the recipient is suspected or dead goes first, so that it can refute it. Others fill the
        datagram, or `limit` bytes if the address is not known to be a member's."""
        me = self._view.me
        rumor = self._view.rumor_to_refute(to, self._time.now) if to is not None else None
        first = (rumor,) if rumor is not None else ()
        size = self._bytes if limit is None else min(limit, self._bytes)
        head = HEAD_BYTES + member_bytes(me) + width(target) + width(target_address)
        rumors = self._view.take_rumors(size - head - sum(map(rumor_bytes, first)))
        self.packets.append((address, Packet(kind, me, seq, target, target_address, (*first, *rumors))))


@dataclass(slots=True)
class Probe:
    seq: int
    target: Member
    relays: int = 0  # relays that were asked
    nacks: int = 0  # relays that answered without an answer of the target


@dataclass(frozen=True, slots=True)
class Relay:
    """A ping on behalf of another member."""

    address: str
    seq: int
    target: str


class Prober:
    def __init__(
        self,
        view: View,
        config: SwimConfig,
        timers: Timers,
        time: SuspendableClock,
        outbox: Outbox,
    ) -> None:
        self._view = view
        self._config = config
        self._timers = timers
        self._time = time
        self._outbox = outbox
        self._seqs = count(1)
        self._probe: Probe | None = None
        self._relays: dict[int, Relay] = {}

    def next(self) -> None:
        """End the current probe and start the next one."""
        self._conclude()
        health = self._view.health
        self._timers.set(("probe", 0), self._time.now + health.stretch(self._config.probe_interval))
        target = self._view.roster.next_target()
        if target is not None and target.reachability is Reachability.UNREACHABLE:
            self._view.accuse_if_silent(target, self._time.now)
        elif target is not None:
            self._timers.set(("indirect", 0), self._time.now + health.stretch(self._config.probe_timeout))
            self._probe = Probe(self.ping(target), target)

    def ping(self, target: Member) -> int:
        seq = next(self._seqs)
        self._outbox.send(target.dial_address, Kind.PING, seq=seq, to=target, target=target.id)
        return seq

    def ask_relays(self) -> None:
        """The target has not answered: ask other members to ping it, and ping it by a call."""
        probe = self._probe
        if probe is None:
            return
        target = probe.target
        if self._config.transport == "udp":
            self._outbox.actions.append(
                PingCall(target.dial_address, Packet(Kind.PING, self._view.me, probe.seq, target.id))
            )
        for relay in self._view.roster.draw(self._config.indirect, without=(target.id,)):
            probe.relays += 1
            self._outbox.send(
                relay.dial_address,
                Kind.PING_REQ,
                seq=probe.seq,
                to=relay,
                target=target.id,
                target_address=target.address,
            )

    def acknowledge(self, packet: Packet) -> None:
        relay = self._relays.get(packet.seq)
        if relay is not None and relay.target == packet.target == packet.sender.id:
            self._timers.cancel(("relay", packet.seq))
            self._report(packet.seq, Kind.ACK)
        probe = self._probe
        if probe is not None and probe.seq == packet.seq and probe.target.id == packet.target:
            self._probe = None
            self._timers.cancel(("indirect", 0))
            self._view.health.add(-1)

    def nack(self, packet: Packet) -> None:
        """A relay answered, so this member's own network works: only the target is silent."""
        if self._probe is not None and self._probe.seq == packet.seq:
            self._probe.nacks = min(self._probe.nacks + 1, self._probe.relays)

    def relay(self, packet: Packet, source: str) -> None:
        """Ping a member on behalf of another one. The packets carry no rumours: the owner of the address `source`
        is not verified."""
        requester, target = map(self._view.roster.get, (packet.sender.id, packet.target))
        if requester is None or target is None or target.address != packet.target_address:
            return
        if len(self._relays) >= RELAYS_LIMIT:
            return
        seq = next(self._seqs)
        self._relays[seq] = Relay(source, packet.seq, packet.target)
        self._timers.set(("relay", seq), self._time.now + RELAY_SHARE * self._config.probe_timeout)
        self._outbox.send(target.dial_address, Kind.PING, seq=seq, target=target.id, limit=0)

    def give_up_relay(self, seq: int) -> None:
        self._report(seq, Kind.NACK)

    def _report(self, seq: int, kind: Kind) -> None:
        relay = self._relays.pop(seq)
        self._outbox.send(relay.address, kind, seq=relay.seq, target=relay.target, limit=0)

    def _conclude(self) -> None:
        """A probe without an answer has failed."""
        probe, self._probe = self._probe, None
        if probe is None or self._time.lenient:
            return
        known = self._view.roster.get(probe.target.id)
        # A member that has moved during the probe was not reached at its old address.
        if known is not None and known.dial_address == probe.target.dial_address:
            self._view.accuse(known.id, self._time.now)
        # After the suspicion has begun, so that its timeout uses the health score before this probe.
        self._view.health.add(probe.relays - probe.nacks if probe.relays else 1)
