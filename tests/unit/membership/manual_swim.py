"""One machine driven by hand: its peers are whatever the test says they are."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TypeVar

from pfl_node.membership.member import Member, State
from pfl_node.membership.member_events import Action, MemberEvent
from pfl_node.membership.packet import Kind, Packet, Rumor
from pfl_node.membership.swim import Swim
from pfl_node.membership.swim_config import SwimConfig

E = TypeVar("E", bound=MemberEvent)


def peer(number: int, *, incarnation: int = 1, state: State = State.ALIVE, round: int = 0) -> Member:
    return Member(
        f"p{number}",
        f"peer-{number}",
        f"10.0.0.{number}:7000",
        incarnation=incarnation,
        state=state,
        round=round,
    )


ME = Member("me", "myself", "10.0.0.100:7000", incarnation=1)


class Hand:
    """Virtual time starts at 100; what the machine says is kept."""

    def __init__(self, peers: int = 0, *, config: SwimConfig | None = None, seeds: tuple[str, ...] = ()) -> None:
        self.now = 100.0
        self.swim = Swim(ME, config or SwimConfig(), Random(7))
        self.swim.start(self.now, seeds=seeds)
        self.packets: list[tuple[str, Packet]] = []
        self.events: list[MemberEvent] = []
        self.actions: list[Action] = []
        self.peers = [peer(number) for number in range(1, peers + 1)]
        if peers:
            self.swim.merge(self.peers, self.now, by="p1", joining=True)
        self.drain()

    def drain(self) -> None:
        self.packets += self.swim.take_packets()
        self.events += self.swim.take_events()
        self.actions += self.swim.take_actions()

    def hear(self, packet: Packet, source: str | None = None) -> None:
        self.swim.receive(packet, source or packet.sender.address, self.now)
        self.drain()

    def hear_rumor(self, member: Member, *, sender: Member, by: str = "") -> None:
        self.hear(Packet(Kind.GOSSIP, sender, rumors=(Rumor(member, by),)))

    def answers(self, member: Member) -> None:
        """The member answers the last ping to its address."""
        self.drain()
        ping = next(p for to, p in reversed(self.packets) if to == member.address and p.kind is Kind.PING)
        self.hear(Packet(Kind.ACK, member, ping.seq, member.id))

    def dies(self, member: Member) -> None:
        """As when the timeout of the machine's own suspicion has passed."""
        self.swim._view.learn(Rumor(replace(member, state=State.DEAD), by=self.swim.me.id), self.now)
        self.drain()

    def wait(self, seconds: float) -> None:
        """Tick at every wake-up."""
        end = self.now + seconds
        while (when := self.swim.next_wakeup()) is not None and when <= end:
            self.now = max(when, self.now)
            self.swim.tick(self.now)
            self.drain()
        self.now = end

    def wait_for(self, kind: Kind, *, at_most: float = 10.0) -> tuple[str, Packet]:
        """The next packet of this kind."""
        self.packets.clear()
        end = self.now + at_most
        while self.now < end:
            for address, packet in self.packets:
                if packet.kind is kind:
                    return address, packet
            self.wait(0.05)
        raise AssertionError(f"no {kind} within {at_most} s")

    def state_of(self, member: Member) -> State | None:
        known = self.swim.get(member.id)
        return known.state if known else None

    def said(self, kind: Kind) -> list[tuple[str, Packet]]:
        return [(address, packet) for address, packet in self.packets if packet.kind is kind]

    def events_of(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]

    def answer_all(self, seconds: float, *, silent: frozenset[str] = frozenset()) -> None:
        """Let time pass while all peers but the silent ones answer pings at once, and relays say nack."""
        end = self.now + seconds
        while self.now < end:
            self.packets.clear()
            self.wait(0.05)
            for address, packet in list(self.packets):
                owner = next((p for p in self.swim.members() if p.address == address), None)
                if owner is None or owner.id in silent or owner.id == "me":
                    continue
                alive = replace(owner, state=State.ALIVE)
                if packet.kind is Kind.PING:
                    self.hear(Packet(Kind.ACK, alive, packet.seq, owner.id))
                elif packet.kind is Kind.PING_REQ:
                    self.hear(Packet(Kind.NACK, alive, packet.seq, packet.target))
