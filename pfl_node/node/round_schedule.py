"""When a round may begin: `round.every`, `round.hours`, and `round.alone`. Peers are served meanwhile."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from math import floor, inf
from typing import Any

from pfl_node.node.clock import WallClock, now
from pfl_node.node.context import NodeContext
from pfl_node.node.startup import entry_round
from pfl_node.policies.base import Policy
from pfl_node.settings.time_types import minutes_of

POLL_INTERVAL = 60.0  # seconds between two checks of the clock, which may be set, and at the peers' rounds
LONG = 30.0  # seconds: before a longer wait the node writes a checkpoint and a line of the log


@dataclass(frozen=True, slots=True)
class NextRound:
    """The round that a node waits to begin."""

    round: int
    why: str  # the setting: round.every, round.hours, round.alone
    at: float | None  # seconds since 1970; None: when another node joins


def next_boundary(every: float, time: float) -> float:
    """The first multiple of `every` after the time."""
    return (floor(time / every) + 1) * every


def opening(hours: str, time: float, wall: WallClock) -> float:
    """The first moment from `time` on that is within the hours of the day."""
    begin, end = minutes_of(hours)
    here = wall.date(time)
    minute = 60 * here.hour + here.minute
    if begin <= minute < end or (end < begin and not end <= minute < begin):
        return time
    opens = here.replace(hour=begin // 60, minute=begin % 60, second=0, microsecond=0)
    return (opens if opens > here else opens + timedelta(days=1)).timestamp()


class RoundSchedule:
    """`await begins(round)` returns when a round may begin; `await opened()`, when the node does not wait for a
    round."""

    next: NextRound | None = None  # None: not waiting

    def __init__(self, policy: Policy, context: NodeContext) -> None:
        settings = context.settings.round
        self._policy = policy
        self._context = context
        self._every = settings.every
        self._hours = settings.hours
        self._waits_alone = settings.alone == "wait" and not policy.solitary
        self._open = asyncio.Event()

    async def opened(self) -> None:
        """While one part of the policy waits for its next round, the others wait too."""
        while self.next:
            await self._open.wait()

    async def begins(self, round: int) -> int:
        """Wait until the round may begin, and return its number: the swarm may have moved on meanwhile. The very
        first one does not wait for `round.every`, so that an operator sees at once whether the sites exchange
        models."""
        if not (self._every or self._hours or self._waits_alone):
            return round
        began, announced = now(), False
        due = next_boundary(self._every, self._wall.time()) if self._every and round > 0 else 0.0
        self._open.clear()
        try:
            while found := self._obstacle(round, due):
                self.next = found
                left = inf if found.at is None else found.at - self._wall.time()
                if not announced and left >= LONG:
                    announced = True
                    await self._context.recorder.pauses(self.facts() or {})
                await self._context.notifier.wait(min(left, POLL_INTERVAL), "members")
            return await self._after(round, now() - began) if now() > began else round
        finally:
            self.next = None
            self._open.set()

    async def _after(self, round: int, waited: float) -> int:
        """Returns the round to begin: after a long wait, the swarm may be in a later one."""
        context, begins = self._context, round
        if waited > 2 * (self._every or 0):
            begins = entry_round(self._policy, await context.peers.swarm_round(), round)
        if begins > round:
            context.mailbox.advance(begins)
            context.peers.announce_start(begins)
        context.deadlines.resume(now())  # the wait does not count towards the round
        return begins

    @property
    def _wall(self) -> WallClock:
        return self._context.wall

    def _obstacle(self, round: int, due: float) -> NextRound | None:
        """The reason to wait; None: the round may begin."""
        time = self._wall.time()
        if self._waits_alone and not self._context.peers.everyone(finished=True):
            return NextRound(round, "round.alone", None)
        early = due > time and not self._behind(round)
        begin = due if early else time
        if self._hours and (opens := opening(self._hours, begin, self._wall)) > begin:
            return NextRound(round, "round.hours", opens)
        return NextRound(round, "round.every", due) if early else None

    def _behind(self, round: int) -> bool:
        """Whether half of the peers that share this node's rounds are in a later one: then it does not wait."""
        if not self._policy.lockstep:
            return False
        rounds = sorted(self._context.peers.rounds().values())
        return bool(rounds) and rounds[(len(rounds) - 1) // 2] > round

    def facts(self) -> dict[str, Any] | None:
        """The entry of the status: the next round, the time at which it begins, and why it does not begin now."""
        if (found := self.next) is None:
            return None
        at = None if found.at is None else self._wall.date(found.at).astimezone().isoformat(timespec="seconds")
        return {"round": found.round, "at": at, "why": found.why}
