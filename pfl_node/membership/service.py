"""Membership as the rest of a node sees it: bind, start, query the members, leave."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from random import Random

from pfl_node.address import parse_address
from pfl_node.errors import ConfigError, PeerGone, Refused
from pfl_node.membership.member import Member, Role
from pfl_node.membership.member_events import JoinRefused, MemberEvent
from pfl_node.membership.runtime import MemberCalls, SwimRuntime
from pfl_node.membership.swim_config import SwimConfig

log = logging.getLogger(__name__)

FIRST_TRY = 2.0  # seconds that `start` waits for the seeds' first answers
RETRY, RETRY_MOST = 0.5, 5.0  # seconds between attempts to join; doubled each time


def uptime() -> float:
    """A clock that includes the time the machine was suspended, so that a suspension is noticed."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Membership:
    """Call `bind` with the port of the gRPC server, then `start`. `calls` makes gRPC calls to other members; the
    server that answers theirs uses `runtime`."""

    def __init__(
        self,
        me: Member,
        config: SwimConfig,
        *,
        calls: MemberCalls,
        rng: Random,
        on_event: Callable[[MemberEvent], None] | None = None,
        clock: Callable[[], float] = uptime,
    ) -> None:
        self.joined = False
        self.refused = ""  # the reason why a seed refused this node for good
        self.runtime = SwimRuntime(me, config, calls, rng, clock, on_event)
        self._config = config
        self._calls = calls
        self._last_error: dict[str, str] = {}  # by seed
        self._tried = asyncio.Event()

    def bind(self, host: str, port: int) -> None:
        """Bind the UDP port; raises OSError if it is in use."""
        if self._config.transport == "udp":
            self.runtime.udp.bind(host, port)

    async def start(self, seeds: Sequence[str], *, advertise: str) -> None:
        """Join the swarm under the address `advertise`.

        Seeds that do not answer are retried in the background. If a seed answers that this id is in use by another
        node, `start` raises ConfigError; if that happens later, a JoinRefused event follows.
        """
        for seed in seeds:
            parse_address(seed, what="seed")
        if self._config.transport == "udp" and not self.runtime.udp.bound:
            raise RuntimeError("bind the membership's UDP port first")
        others = tuple(dict.fromkeys(seed for seed in seeds if seed != advertise))
        self.joined = not others
        await self.runtime.start(advertise, others)
        if others:
            await self._first_try(others)

    async def leave(self) -> None:
        """Announce the departure and wait until the announcement has been sent."""
        if self.runtime.running:
            await self.runtime.leave()

    async def close(self) -> None:
        """Stop at once. Without a preceding `leave`, other members detect this as a failure."""
        await self.runtime.close()

    def set_round(self, round: int) -> None:
        self.runtime.swim.set_round(round)

    def ask(self, members: Iterable[str]) -> None:
        """Ping these members now: their answers carry their current rounds."""
        self.runtime.ask(members)

    @property
    def me(self) -> Member:
        return self.runtime.me

    @property
    def health(self) -> int:
        """Lifeguard's local health score: 0 is healthy; a slow process has a higher score and longer timeouts."""
        return self.runtime.swim.health

    @property
    def pauses(self) -> int:
        """How often this process did not run for longer than `pause` seconds."""
        return self.runtime.swim.pauses

    @property
    def counters(self) -> Counter[str]:
        """Packets, calls, syncs, garbage and events so far."""
        return self.runtime.counters

    def get(self, member: str) -> Member | None:
        return self.runtime.swim.get(member)

    def members(self) -> tuple[Member, ...]:
        """All known members sorted by id: this one, and recently dead or departed ones, included."""
        return tuple(sorted(self.runtime.members(), key=lambda member: member.id))

    def alive(self, *, role: Role | None = "node", run: str | None = None) -> tuple[Member, ...]:
        """The other members that are alive or suspected; None matches every role or run."""
        return tuple(
            member
            for member in self.members()
            if member.state.present
            and member.id != self.me.id
            and role in (None, member.role)
            and run in (None, member.run)
        )

    def swarm_round(self, run: str) -> int:
        """The lower median round of the other nodes in this run: one node alone cannot change it much."""
        rounds = sorted(member.round for member in self.alive(run=run))
        return rounds[(len(rounds) - 1) // 2] if rounds else 0

    async def _first_try(self, seeds: Sequence[str]) -> None:
        joining = self.runtime.spawn(self._join(seeds))
        tried = asyncio.create_task(self._tried.wait())
        await asyncio.wait((joining, tried), timeout=FIRST_TRY, return_when=asyncio.FIRST_COMPLETED)
        tried.cancel()
        if self.refused:
            raise ConfigError(self.refused)

    async def _join(self, seeds: Sequence[str]) -> None:
        """Try the seeds in turn until one accepts this node or refuses it for good."""
        wait = RETRY
        while True:
            for seed in seeds:
                await self._join_through(seed)
                if self.joined or self.refused:
                    return
            self._tried.set()
            await asyncio.sleep(wait)
            wait = min(2 * wait, RETRY_MOST)

    async def _join_through(self, seed: str) -> None:
        try:
            by, members = await self._calls.join(seed, self.me)
        except PeerGone as error:
            log.debug("cannot join through %s", error)
        except Refused as error:
            repeated = self._last_error.get(seed) == str(error)
            self._last_error[seed] = str(error)
            log.log(logging.DEBUG if repeated else logging.WARNING, "cannot join through %s", error)
        except ConfigError as error:
            self.refused = str(error)
            self.runtime.emit(JoinRefused(self.me, self.refused))
        else:
            self.joined = True
            self.runtime.merge(members, by, joining=True)
