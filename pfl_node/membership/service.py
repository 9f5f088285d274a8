"""Membership as its owner sees it: attach, start, ask who is there, leave. How it works: see the engine."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import TYPE_CHECKING

from pfl_node.address import parse_address
from pfl_node.errors import ConfigError, PeerGone, Refused
from pfl_node.membership.member import Member, Role
from pfl_node.membership.member_events import JoinRefused, MemberEvent
from pfl_node.membership.runtime import SwimRuntime
from pfl_node.membership.swim_config import SwimConfig
from pfl_node.wire.membership_service import MembershipService

if TYPE_CHECKING:
    from pfl_node.settings import MembershipSettings
    from pfl_node.wire.dialer import Dialer
    from pfl_node.wire.endpoint import Endpoint

log = logging.getLogger(__name__)

FIRST_TRY = 2.0  # seconds that `start` waits for the seeds' first answers
RETRY, RETRY_MOST = 0.5, 5.0  # seconds between rounds of asking the seeds


def uptime() -> float:
    """Goes on while the machine is suspended, so that a nap is noticed."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Membership:
    """In this order: `attach`, the endpoint's `bind` (with `also=membership.bind`) and `start`, then `start`."""

    def __init__(
        self,
        me: Member,
        config: SwimConfig | MembershipSettings,
        *,
        rng: Random,
        on_event: Callable[[MemberEvent], None] | None = None,
        clock: Callable[[], float] = uptime,
        dialer: Dialer | None = None,
    ) -> None:
        self.joined = False
        self.refused = ""  # why I may not join
        self._config = SwimConfig.of(config, secure=dialer is not None and dialer.secure)
        self._engine = SwimRuntime(me, self._config, rng, clock, on_event, dialer)
        self._complaints: dict[str, str] = {}  # by seed, what was said last
        self._endpoint: Endpoint | None = None
        self._tried = asyncio.Event()

    def attach(self, endpoint: Endpoint) -> None:
        """Before the endpoint is bound."""
        self._endpoint = endpoint
        endpoint.add("pfl.v1.Membership", MembershipService(self._engine).register)

    def bind(self, host: str, port: int) -> None:
        """Take the port's number for UDP, too; raises OSError when it is taken."""
        if self._config.transport == "udp":
            self._engine.udp.bind(host, port)

    async def start(self, seeds: Sequence[str], *, advertise: str | None = None) -> None:
        """Become a member. A seed that is down is tried again in the background; a seed that says that my id is in
        use by somebody else raises a ConfigError, or later a JoinRefused event."""
        for seed in seeds:
            parse_address(seed, what="seed")
        endpoint = self._bound()
        address = advertise or self.me.address or endpoint.address
        if self._config.transport == "udp" and not self._engine.udp.bound:
            self._bind_now(endpoint)
        others = tuple(dict.fromkeys(seed for seed in seeds if seed != address))
        self.joined = not others
        await self._engine.start(address, others)
        if others:
            await self._first_try(others)

    async def leave(self) -> None:
        """Tell the others, and wait until they have been told."""
        if self._engine.running:
            await self._engine.leave()

    async def close(self) -> None:
        """Stop at once; without `leave` the others find out by themselves."""
        await self._engine.close()

    def set_round(self, round: int) -> None:
        self._engine.swim.set_round(round)

    def ask(self, members: Iterable[str]) -> None:
        """In which rounds are they now? Rounds come with the usual probes, which may take many of them."""
        self._engine.ask(members)

    @property
    def me(self) -> Member:
        return self._engine.me

    @property
    def health(self) -> int:
        """0 is well; higher: this process is slow, and takes more time to judge others."""
        return self._engine.swim.health

    @property
    def pauses(self) -> int:
        """How often this process stood still for longer than `pause`."""
        return self._engine.swim.pauses

    @property
    def counters(self) -> Counter[str]:
        """Packets, calls, exchanges, garbage and events so far."""
        return self._engine.counters

    def get(self, member: str) -> Member | None:
        return self._engine.swim.get(member)

    def members(self) -> tuple[Member, ...]:
        """Everybody known and me, those who are gone but not forgotten included."""
        return tuple(sorted(self._engine.members(), key=lambda member: member.id))

    def alive(self, *, role: Role | None = "node", run: str | None = None) -> tuple[Member, ...]:
        """The others that are there, suspects included. None: any."""
        return tuple(
            member
            for member in self.members()
            if member.state.present
            and member.id != self.me.id
            and role in (None, member.role)
            and run in (None, member.run)
        )

    def swarm_round(self, run: str) -> int:
        """The round that half of the other nodes of this run have begun, so that no single one decides."""
        rounds = sorted(member.round for member in self.alive(run=run))
        return rounds[(len(rounds) - 1) // 2] if rounds else 0

    async def _first_try(self, seeds: Sequence[str]) -> None:
        joining = self._engine.spawn(self._join(seeds))
        tried = asyncio.create_task(self._tried.wait())
        await asyncio.wait((joining, tried), timeout=FIRST_TRY, return_when=asyncio.FIRST_COMPLETED)
        tried.cancel()
        if self.refused:
            raise ConfigError(self.refused)

    async def _join(self, seeds: Sequence[str]) -> None:
        """Ask the seeds in turn until one lets me in, or says why it never will."""
        wait = RETRY
        while True:
            for seed in seeds:
                await self._ask(seed)
                if self.joined or self.refused:
                    return
            self._tried.set()
            await asyncio.sleep(wait)
            wait = min(2 * wait, RETRY_MOST)

    async def _ask(self, seed: str) -> None:
        try:
            by, members = await self._engine.calls.join(seed, self.me)
        except PeerGone as error:
            log.debug("cannot join through %s", error)
        except Refused as error:
            said, self._complaints[seed] = self._complaints.get(seed), str(error)
            log.log(logging.DEBUG if said == str(error) else logging.WARNING, "cannot join through %s", error)
        except ConfigError as error:
            self.refused = str(error)
            self._engine.tell(JoinRefused(self.me, self.refused))
        else:
            self.joined = True
            self._engine.absorb(members, by, joining=True)

    def _bound(self) -> Endpoint:
        if self._endpoint is None or not self._endpoint.port:
            raise RuntimeError("attach the membership to an endpoint and bind that first")
        return self._endpoint

    def _bind_now(self, endpoint: Endpoint) -> None:
        """The owner did not take the number together with the port."""
        try:
            self.bind(endpoint.host, endpoint.port)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {endpoint.address}: UDP port {endpoint.port} is in use; choose another port"
            ) from error
