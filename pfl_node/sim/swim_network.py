"""The daemon's SWIM state machine in a simulation: on virtual time, with its packets as simulated datagrams."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence, Set
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING

from pfl_node.membership.member import Member
from pfl_node.membership.member_events import Action, PingCall, Sync
from pfl_node.membership.packet import Packet
from pfl_node.membership.run_members import RunMembers
from pfl_node.membership.swim import Swim
from pfl_node.membership.swim_config import SwimConfig
from pfl_node.types import PeerId

if TYPE_CHECKING:
    from pfl_node.sim.node_process import Process
    from pfl_node.sim.simulation import World

CALL = "call:"  # address prefix for the answer to a call
AGAIN = 1.0  # seconds between two attempts to join
FIRST_TRY = 2.0  # seconds for which a starting node waits to be admitted


class SimMembership:
    """One member; every restart of the process creates a new one. Addresses are ids. Full state exchanges are
    calls: they fail only if the peer is unreachable. The state machine runs on the node's own clock."""

    joined = True

    def __init__(self, process: Process, world: World) -> None:
        self._me = process
        self._world = world
        settings, life = world.settings, process.disk.lives
        config = SwimConfig.of(settings.membership)
        chance = Random(f"{settings.seed}/swim/{process.id}/{life}")
        self.swim = Swim(self._member(process.id, life), config, chance)
        self.members_of_run = RunMembers(self, run=settings.run, rounds=settings.rounds)
        self._timer: asyncio.TimerHandle | None = None
        self._sent = 0
        self._cut = False
        self._running = False
        self._admitted = asyncio.Event()

    def _member(self, id: PeerId, incarnation: int) -> Member:
        return Member(id, id, id, "node", self._world.settings.run, incarnation=incarnation)

    # -- the node's interface ------------------------------------------------------------------------------

    @property
    def me(self) -> Member:
        return self.swim.me

    @property
    def pauses(self) -> int:
        return self.swim.pauses

    async def start(self, seeds: Sequence[str], *, advertise: str | None = None) -> None:  # noqa: ARG002
        """Founders know each other from the start; a later node joins through a member."""
        self._running = True
        self.swim.start(self._now(), address=self._me.id)
        if self._me.begins_at is not None:
            founders = [self._member(id, 1) for id, node in self._world.nodes.items() if node.founder]
            self.swim.merge(founders, self._now(), by=self._me.id, joining=True)
        else:
            self._join()
        self._drain()
        await self._me.entered()
        if self._me.begins_at is None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._admitted.wait(), FIRST_TRY)

    def members(self) -> Sequence[Member]:
        return sorted(self.swim.members(), key=lambda member: member.id)

    def get(self, member: str) -> Member | None:
        return self.swim.get(member)

    def heard(self) -> Set[str]:
        return self.swim.heard

    def set_round(self, round: int) -> None:
        if not self._cut:
            self.swim.set_round(round)
            self._me.announced(round)

    def ask(self, members: Iterable[str]) -> None:
        if self._running and not self._cut:
            self.swim.ask(members, self._now())
            self._drain()

    async def leave(self) -> None:
        if self._running and not self._cut:
            self.swim.leave(self._now())
            self._drain()
            self._running = False

    async def close(self) -> None:
        self.cut()

    def cut(self) -> None:
        """The process is gone: stop the timer, send and receive nothing more."""
        self._cut, self.members_of_run.listener = True, None
        if self._timer:
            self._timer.cancel()

    # -- the state machine ---------------------------------------------------------------------------------

    def _now(self) -> float:
        return self._me.clock.now

    def _drain(self) -> None:
        for address, packet in self.swim.take_packets():
            self._send(address, packet)
        for action in self.swim.take_actions():
            self._perform(action)
        for event in self.swim.take_events():
            self.members_of_run.on_event(event)
        when = self.swim.next_wakeup() if self._running and not self._cut else None
        if self._timer:
            self._timer.cancel()
        self._timer = None if when is None else self._world.clock.call_at(max(when, self._now()), self._tick)

    def _tick(self) -> None:
        self.swim.tick(self._now())
        self._drain()

    def receive(self, packet: Packet, source: str) -> None:
        if self._running and not self._cut:
            self.swim.receive(packet, source, self._now())
            self._drain()

    def absorb(self, members: Iterable[Member], by: str, *, joining: bool = False) -> None:
        if self._running and not self._cut:
            self.swim.merge(members, self._now(), by=by, joining=joining)
            self._drain()
            if joining:
                self._admitted.set()

    # -- the network ---------------------------------------------------------------------------------------

    def _send(self, address: str, packet: Packet) -> None:
        """Send a datagram, which may be lost, or the answer to a call, which is not."""
        peer, call = PeerId(address.removeprefix(CALL)), address.startswith(CALL)
        self._sent += 1
        world, number = self._world, self._sent
        if call or not world.conditions.loses(world.clock.now, lambda n: self._chance(peer, f"lost{n}", number)):
            self._after(peer, number, lambda other: other.receive(packet, self._me.id))

    def _perform(self, action: Action) -> None:
        peer = PeerId(action.address)
        self._sent += 1
        if isinstance(action, Sync):
            known = list(self.swim.members())
            self._after(peer, self._sent, lambda other: self._exchanged(other, known))
        elif isinstance(action, PingCall):
            packet = action.packet
            self._after(peer, self._sent, lambda other: other.receive(packet, CALL + self._me.id))

    def _exchanged(self, other: SimMembership, known: list[Member]) -> None:
        """Runs at the other node."""
        theirs = list(other.swim.members())
        other.absorb(known, self._me.id)
        other._sent += 1
        other._after(self._me.id, other._sent, lambda me: me.absorb(theirs, other._me.id))

    def _join(self) -> None:
        """Join through the first node that is up and reachable; if none is reachable, retry while any is up."""
        if self._cut:
            return
        self._sent += 1
        world = self._world
        for id, node in world.nodes.items():
            if node is not self._me and node.swim and world.reaches(self._me.id, id):
                node.context.run(self._admitted_by, node.swim)
                return
        if any(node.up for node in world.nodes.values() if node is not self._me):
            world.clock.after(AGAIN, self._join)

    def _admitted_by(self, seed: SimMembership) -> None:
        admission = seed.swim.admit(self.swim.me, seed._now())
        seed._drain()
        known = list(seed.swim.members())
        if admission.accepted:
            seed._sent += 1
            seed._after(self._me.id, seed._sent, lambda me: me.absorb(known, seed._me.id, joining=True))
        else:
            self._world.clock.after(admission.again or AGAIN, self._join)

    def _after(self, peer: PeerId, number: int, then: Callable[[SimMembership], None]) -> None:
        """Run `then` at the peer after a packet's travel time, if the peer is reachable by then."""
        world = self._world
        seconds = world.costs.travel(0, self._chance(peer, "there", number)) + world.conditions.delay(
            world.clock.now
        )

        def arrive() -> None:
            node = world.nodes.get(peer)
            if node and node.swim and world.reaches(self._me.id, peer):
                node.context.run(then, node.swim)

        world.clock.after(seconds, arrive)

    def _chance(self, peer: PeerId, what: str, number: int) -> float:
        return self._world.chance("swim", self._me.id, self._me.disk.lives, peer, number, what)
