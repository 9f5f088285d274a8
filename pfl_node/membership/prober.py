"""Probing: one member at a time is pinged, through others when it is silent. Knows no clock and no network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from pfl_node.membership.member import Member
from pfl_node.membership.member_events import PingCall
from pfl_node.membership.outbox import Outbox
from pfl_node.membership.packet import Kind, Packet
from pfl_node.membership.suspendable_clock import SuspendableClock
from pfl_node.membership.swim_config import SwimConfig
from pfl_node.membership.timers import Timers
from pfl_node.membership.view import View

RELAYS_LIMIT = 64  # pings made for others at the same time
RELAY_SHARE = 0.6  # of the probe timeout: what a relay waits, so that its answer is back before the asker judges


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


class Prober:
    def __init__(
        self,
        view: View,
        config: SwimConfig,
        timers: Timers,
        time: SuspendableClock,
        outbox: Outbox,
        act: Callable[[PingCall], None],
    ) -> None:
        self._view = view
        self._config = config
        self._timers = timers
        self._time = time
        self._outbox = outbox
        self._act = act
        self._seqs = count(1)
        self._probe: Probe | None = None
        self._relays: dict[int, Relay] = {}

    def next(self) -> None:
        """The time of the last one is over; begin with another."""
        self._judge()
        health = self._view.health
        self._timers.set(("probe", 0), self._time.now + health.stretch(self._config.probe_interval))
        target = self._view.roster.next_target()
        if target is not None:
            self._timers.set(("indirect", 0), self._time.now + health.stretch(self._config.probe_timeout))
            self._probe = Probe(self.ping(target), target)

    def ping(self, target: Member) -> int:
        seq = next(self._seqs)
        self._outbox.send(target.address, Kind.PING, seq=seq, to=target, target=target.id)
        return seq

    def ask_relays(self) -> None:
        """The target is silent: let others try, and try a call."""
        probe = self._probe
        if probe is None:
            return
        target = probe.target
        if self._config.transport == "udp":
            self._act(PingCall(target.address, Packet(Kind.PING, self._view.me, probe.seq, target.id)))
        for relay in self._view.roster.draw(self._config.indirect, without=(target.id,)):
            probe.asked += 1
            self._outbox.send(
                relay.address, Kind.PING_REQ, seq=probe.seq, to=relay, target=target.id, place=target.address
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
        """A relay is well and so is my way to it: the silence is not my fault."""
        if self._probe is not None and self._probe.seq == packet.seq:
            self._probe.nacks = min(self._probe.nacks + 1, self._probe.asked)

    def relay(self, packet: Packet, source: str) -> None:
        """Somebody asks me to try."""
        if len(self._relays) >= RELAYS_LIMIT or not packet.target_address:
            return
        seq = next(self._seqs)
        self._relays[seq] = Relay(source, packet.seq, packet.target)
        self._timers.set(("relay", seq), self._time.now + RELAY_SHARE * self._config.probe_timeout)
        self._outbox.send(packet.target_address, Kind.PING, seq=seq, target=packet.target)

    def give_up_relay(self, seq: int) -> None:
        self._report(seq, Kind.NACK)

    def _report(self, seq: int, kind: Kind) -> None:
        relay = self._relays.pop(seq)
        self._outbox.send(relay.address, kind, seq=relay.seq, target=relay.target)

    def _judge(self) -> None:
        """A probe that is still open has failed."""
        probe, self._probe = self._probe, None
        if probe is None or self._time.lenient:
            return
        self._view.health.add(probe.asked - probe.nacks if probe.asked else 1)
        known = self._view.roster.get(probe.target.id)
        # A life that began while the old one was probed is not to blame.
        if known is not None and known.address == probe.target.address:
            self._view.accuse(known.id, self._time.now)
