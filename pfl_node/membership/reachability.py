"""Determines whether others can connect to this member: some of them dial it back, as in libp2p's AutoNAT."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Protocol

from pfl_node.errors import PeerError
from pfl_node.membership.member import Member, Reachability, Role
from pfl_node.membership.member_calls import DialBackAnswer

ASKED = 3  # members in one check
RETRY, RETRY_MOST = 4.0, 30.0  # seconds between checks while nobody reaches this member; doubled each time
RECHECK = 600.0  # seconds between checks while others reach it
RECHECK_AFTER_ACCUSATION = 10.0  # minimum seconds between a check and the next one after an accusation
NO_ANSWER_RETRY = 0.5  # seconds to wait if no member answers
GRACE = 3.0  # seconds that members have to answer once another one has; a dial takes 2 s to fail
JITTER = 0.2  # fraction of each wait
WHAT_TO_DO = "open the port, set advertise, or use a relay"

DialBack = Callable[[str, Member], Awaitable[DialBackAnswer]]  # the address of the member to ask, and my record


@dataclass(frozen=True, slots=True)
class DialBackResult:
    """Whether one member reached this one."""

    peer: str
    name: str
    address: str  # the address that was dialled
    reached: bool
    reason: str  # why this member was not reached
    at: float  # seconds since 1970
    clock_ahead: float  # seconds by which the clock of the asked member is ahead

    def __str__(self) -> str:
        if self.reached:
            return f"{self.name} reaches you at {self.address}"
        why = f" ({self.reason})" if self.reason else ""
        return f"{self.name} cannot reach you at {self.address}{why}: {WHAT_TO_DO}"


def decide(results: Sequence[DialBackResult]) -> Reachability:
    """One member that reaches this one is enough: the address is right and the port is open."""
    if any(result.reached for result in results):
        return Reachability.DIRECT
    return Reachability.UNREACHABLE if results else Reachability.UNKNOWN


class Asked(Protocol):
    """The part of a membership that the monitor uses."""

    @property
    def me(self) -> Member: ...
    def alive(self, *, role: Role | None = "node", run: str | None = None) -> Sequence[Member]: ...


class ReachabilityMonitor:
    """Checks after the start, when `check` is called, often while nobody reaches this member, and else rarely.
    `decided` is called with every change of `state`."""

    def __init__(
        self,
        membership: Asked,
        dial_back: DialBack,
        *,
        rng: Random,
        decided: Callable[[Reachability, Sequence[DialBackResult]], None],
    ) -> None:
        self.state = Reachability.UNKNOWN
        self.results: dict[str, DialBackResult] = {}  # the last result of each present member, by id
        self._membership = membership
        self._dial_back = dial_back
        self._rng = rng
        self._decided = decided
        self._again = asyncio.Event()
        self._wait = RETRY
        self._failed_checks = 0  # checks in a row in which nobody reached this member
        self._checked = float("-inf")  # when the last check began
        self._decides = True
        self._task: asyncio.Task[None] | None = None

    def start(self, *, decides: bool = True) -> None:
        """`decides`: False for a member that is reached through relays in any case, and only compares clocks."""
        self._decides = decides
        self._task = asyncio.create_task(self._run(), name="reachability")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def check(self) -> None:
        """Check now: the address has changed."""
        self._wait = RETRY
        self._again.set()

    def member_joined(self) -> None:
        """A member has joined: if nobody could be asked yet, ask it now."""
        if self.state is Reachability.UNKNOWN and not self.results:
            self._again.set()

    def accused(self) -> None:
        """Others have accused this member, so they may not reach it any more: check soon."""
        due = self._checked + RECHECK_AFTER_ACCUSATION
        if self.state is Reachability.DIRECT and asyncio.get_running_loop().time() >= due:
            self._again.set()

    async def _run(self) -> None:
        while True:
            self._again.clear()
            self._checked = asyncio.get_running_loop().time()
            wait = self._conclude(await self.ask_some())
            with suppress(TimeoutError):
                async with asyncio.timeout(wait * self._rng.uniform(1 - JITTER, 1 + JITTER)):
                    await self._again.wait()

    async def ask_some(self) -> list[DialBackResult]:
        """The answers of up to three members, beginning with those that were asked longest ago."""
        members = list(self._membership.alive(role=None))
        self._forget(members)
        self._rng.shuffle(members)
        members.sort(key=lambda m: self.results[m.id].at if m.id in self.results else 0.0)
        results = await self._answers([asyncio.create_task(self._ask(member)) for member in members[:ASKED]])
        self.results.update({result.peer: result for result in results})
        return results

    async def _answers(self, asking: Sequence[asyncio.Task[DialBackResult | None]]) -> list[DialBackResult]:
        """Once one member has answered, wait only GRACE seconds for the others: a call to a dead member takes long
        to fail."""
        found: list[DialBackResult] = []
        waiting = set(asking)
        try:
            while waiting:
                timeout = GRACE if found else None
                done, waiting = await asyncio.wait(waiting, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    break
                found += [answer for task in done if (answer := task.result()) is not None]
        finally:
            for task in asking:
                task.cancel()
        return found

    async def _ask(self, member: Member) -> DialBackResult | None:
        """None if the call failed or the member could not decide; that is no result about this member."""
        me = self._membership.me
        try:
            answer = await self._dial_back(member.dial_address, me)
        except PeerError:
            return None
        return DialBackResult(
            member.id,
            member.name,
            me.address,
            answer.reached,
            answer.reason,
            time.time(),
            answer.clock_ahead,
        )

    def _conclude(self, results: Sequence[DialBackResult]) -> float:
        """Returns the seconds until the next check. If others reached this member before, a failure is checked a
        second time."""
        found = decide(results)
        if found is Reachability.UNKNOWN:
            return RETRY if self._membership.alive(role=None) else NO_ANSWER_RETRY
        if not self._decides:
            return RECHECK
        self._failed_checks = 0 if found is Reachability.DIRECT else self._failed_checks + 1
        if self.state is Reachability.DIRECT and self._failed_checks == 1:
            return RETRY
        if found is not self.state:
            self.state, self._wait = found, RETRY
            self._decided(found, results)
        if found is Reachability.DIRECT:
            return RECHECK
        wait, self._wait = self._wait, min(2 * self._wait, RETRY_MOST)
        return wait

    def _forget(self, members: Sequence[Member]) -> None:
        present = {member.id for member in members}
        self.results = {id: result for id, result in self.results.items() if id in present}
