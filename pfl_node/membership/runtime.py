"""Runs the SWIM state machine: sends its packets over UDP or gRPC, performs its actions, drives its timer.

All decisions about members are made in `swim.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from random import Random
from typing import Any, Protocol

from pfl_node.errors import PeerGone, Refused
from pfl_node.membership import packet_codec
from pfl_node.membership.admission import Admission
from pfl_node.membership.member import Member
from pfl_node.membership.member_events import Action, Clashed, Died, MemberEvent, PingCall, Suspected
from pfl_node.membership.packet import Kind, Packet
from pfl_node.membership.swim import Swim
from pfl_node.membership.swim_config import SwimConfig
from pfl_node.membership.udp import Udp

log = logging.getLogger(__name__)

CALLER = "/call/"  # prefix of the pseudo-address of a gRPC caller; no member can have such an address
CALLS_LIMIT = 128  # concurrent calls, in each direction


class MemberCalls(Protocol):
    """RPCs to other members. Each raises PeerGone, or Refused for an answer that must not be used."""

    async def join(self, seed: str, me: Member) -> tuple[str, list[Member]]:
        """The id of the seed and the members it knows. Raises ConfigError if another node uses my id."""

    async def sync(self, address: str, me: Member, members: Iterable[Member]) -> tuple[str, list[Member]]:
        """Exchange member lists; the id of the peer and the members it knows."""

    async def send(self, address: str, packet: Packet, timeout: float) -> Packet | None:
        """Send a packet as a call and return the answer, if the packet has one."""

    async def close(self) -> None: ...


class SwimRuntime:
    """Call `start`; stop with `leave`, `close` or both."""

    def __init__(
        self,
        me: Member,
        config: SwimConfig,
        calls: MemberCalls,
        rng: Random,
        clock: Callable[[], float],
        on_event: Callable[[MemberEvent], None] | None,
    ) -> None:
        self.swim = Swim(me, config, rng)
        self.udp = Udp(self._datagram, clock)
        self.counters: Counter[str] = Counter()
        self.running = False
        self._config = config
        self._calls = calls
        self._clock = clock
        self._on_event = on_event
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._wakeup: float | None = None
        self._callers: dict[str, asyncio.Future[Packet]] = {}  # gRPC callers waiting for an answer
        self._syncing: set[str] = set()

    @property
    def me(self) -> Member:
        return self.swim.me

    def members(self) -> list[Member]:
        return self.swim.members()

    async def start(self, address: str, seeds: Sequence[str]) -> None:
        if self._config.transport == "udp":
            await self.udp.open()
        self.running = True
        self.swim.start(self._clock(), address=address, seeds=seeds)
        self._drain()

    async def leave(self) -> None:
        self.running = False
        self.swim.leave(self._clock())
        before = set(self._tasks)
        self._drain()
        await self.udp.flush()
        if farewells := self._tasks - before:
            await asyncio.wait(farewells, timeout=self._config.probe_interval)

    async def close(self) -> None:
        self.running = False
        self._arm()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.udp.close()
        await self._calls.close()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def emit(self, event: MemberEvent) -> None:
        self.counters[type(event).__name__.lower()] += 1
        if isinstance(event, Suspected | Died):
            self.udp.invalidate(event.member.address)
        if isinstance(event, Clashed):
            log.warning("another node at %s uses this node's id %s", event.member.address, self.me.id)
        if self._on_event is not None:
            try:
                self._on_event(event)
            except Exception:
                log.exception("a listener of membership events failed")

    # inputs

    def admit(self, newcomer: Member) -> Admission:
        admission = self.swim.admit(newcomer, self._clock())
        self._drain()
        return admission

    def ask(self, members: Iterable[str]) -> None:
        if self.running:
            self.swim.ask(members, self._clock())
            self._drain()

    def merge(self, members: Iterable[Member], by: str, *, joining: bool = False) -> None:
        self.swim.merge(members, self._clock(), by=by, joining=joining)
        self._drain()

    async def reply_to(self, packet: Packet) -> Packet | None:
        """Process a packet received as a gRPC call; returns the packet that the state machine sends back."""
        if len(self._callers) >= CALLS_LIMIT:
            return None
        self.counters["calls_in"] += 1
        caller = f"{CALLER}{self.counters['calls_in']}"
        answer: asyncio.Future[Packet] = asyncio.get_running_loop().create_future()
        self._callers[caller] = answer
        try:
            self._receive(packet, caller)
            if packet.kind is Kind.PING_REQ:
                await asyncio.wait((answer,), timeout=self._config.probe_timeout)
            return answer.result() if answer.done() else None
        finally:
            del self._callers[caller]

    def _datagram(self, data: bytes, source: str) -> None:
        if not self.running:
            return
        try:
            packet = packet_codec.decode(data)
        except Refused:
            self.counters["garbage"] += 1
            return
        self.counters["packets_in"] += 1
        self._receive(packet, source)

    def _receive(self, packet: Packet, source: str) -> None:
        self.swim.receive(packet, source, self._clock())
        self._drain()

    def _tick(self) -> None:
        self._timer = self._wakeup = None
        self.swim.tick(self._clock())
        self._drain()

    # outputs

    def _drain(self) -> None:
        for address, packet in self.swim.take_packets():
            self._send(address, packet)
        for action in self.swim.take_actions():
            self._perform(action)
        for event in self.swim.take_events():
            self.emit(event)
        self._arm()

    def _arm(self) -> None:
        """Set the one timer to the state machine's next wake-up."""
        when = self.swim.next_wakeup() if self.running else None
        if when == self._wakeup:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._wakeup = None, when
        if when is not None:
            delay = max(when - self._clock(), 0.0)
            self._timer = asyncio.get_running_loop().call_later(delay, self._tick)

    def _send(self, address: str, packet: Packet) -> None:
        caller = self._callers.get(address)
        if caller is not None:
            if not caller.done():
                caller.set_result(packet)
        elif address.startswith(CALLER):
            return  # the call has ended
        elif self._config.transport == "udp":
            self.counters["packets_out"] += 1
            self.udp.send(packet_codec.encode(packet), address)
        elif len(self._tasks) < CALLS_LIMIT:
            self.spawn(self._call(address, packet))

    def _perform(self, action: Action) -> None:
        if isinstance(action, PingCall):
            self.spawn(self._call(action.address, action.packet))
        elif action.address not in self._syncing:
            self._syncing.add(action.address)
            self.spawn(self._sync(action.address))

    async def _call(self, address: str, packet: Packet) -> None:
        """A call without an answer needs no handling: the state machine has its own timeouts."""
        self.counters["calls_out"] += 1
        try:
            answer = await self._calls.send(address, packet, self._config.probe_interval * (1 + self.swim.health))
        except PeerGone:
            return
        except Refused:
            self.counters["garbage"] += 1
            return
        if answer is not None and self.running:
            self._receive(answer, address)

    async def _sync(self, address: str) -> None:
        self.counters["syncs_out"] += 1
        try:
            by, members = await self._calls.sync(address, self.me, self.members())
        except PeerGone as gone:
            log.debug("sync failed: %s", gone)
            return
        except Refused:
            self.counters["garbage"] += 1
            return
        finally:
            self._syncing.discard(address)
        if self.running:
            self.merge(members, by)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a membership task failed", exc_info=error)
