"""Real memberships on localhost in one event loop, and a way to wait for what they believe."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from random import Random

from pfl_node.membership.member import Member, State
from pfl_node.membership.member_events import MemberEvent
from pfl_node.membership.service import Membership
from pfl_node.membership.swim_config import SwimConfig
from pfl_node.wire.endpoint import Endpoint
from pfl_node.wire.membership_service import attach_membership

QUICK = SwimConfig(
    probe_interval=0.2, probe_timeout=0.1, suspicion=2.0, gossip_interval=0.05, sync_interval=0.5, pause=5.0
)
PATIENCE = 30.0


@dataclass
class Place:
    membership: Membership
    endpoint: Endpoint

    @property
    def id(self) -> str:
        return self.membership.me.id

    async def crash(self) -> None:
        await self.membership.close()
        await self.endpoint.stop(0)

    def state_of(self, member: str) -> State | None:
        return next((m.state for m in self.membership.members() if m.id == member), None)


@dataclass
class Swarm:
    """Every event of every member rings the notifier."""

    config: SwimConfig = QUICK
    places: list[Place] = field(default_factory=list)
    events: list[MemberEvent] = field(default_factory=list)
    notifier: asyncio.Event = field(default_factory=asyncio.Event)

    async def prepare(self, member: Member, *, listen: str = "127.0.0.1:0") -> Place:
        """Bound and serving, but no member yet."""
        endpoint = Endpoint()
        membership = attach_membership(endpoint, member, self.config, rng=Random(member.id), on_event=self._heard)
        place = Place(membership, endpoint)
        self.places.append(place)
        await endpoint.bind(listen, membership.bind)
        await endpoint.start()
        return place

    async def add(self, member: Member, *seeds: str, listen: str = "127.0.0.1:0") -> Place:
        place = await self.prepare(member, listen=listen)
        await place.membership.start(seeds, advertise=place.endpoint.address)
        return place

    async def until(self, so: Callable[[], bool]) -> None:
        await until(so, self.notifier)

    def _heard(self, event: MemberEvent) -> None:
        self.events.append(event)
        self.notifier.set()


async def until(so: Callable[[], bool], notifier: asyncio.Event | None = None) -> None:
    """Look when the notifier rings, and now and then for what rings none."""
    notifier = notifier or asyncio.Event()
    async with asyncio.timeout(PATIENCE):
        while not so():
            notifier.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(notifier.wait(), 0.05)


@asynccontextmanager
async def swarm(config: SwimConfig = QUICK) -> AsyncIterator[Swarm]:
    group = Swarm(config)
    try:
        yield group
    finally:
        for place in group.places:
            await place.crash()


def member(name: str, **facts: object) -> Member:
    return Member(f"id-{name}", name, incarnation=1, **facts)  # type: ignore[arg-type]
