"""The machine on a real network: its packets over UDP or gRPC, its wishes as calls, its time from a clock.

It decides nothing about who is alive; that is `swim.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from random import Random
from typing import Any

from pfl_node.errors import PeerGone, Refused
from pfl_node.membership import packet_codec
from pfl_node.membership.admission import Admission
from pfl_node.membership.member import Member
from pfl_node.membership.member_events import Clashed, Dial, Died, MemberEvent, Suspected, Wish
from pfl_node.membership.packet import Kind, Packet
from pfl_node.membership.swim import Swim
from pfl_node.membership.swim_config import SwimConfig
from pfl_node.membership.udp import Udp
from pfl_node.wire.dialer import Dialer
from pfl_node.wire.membership_client import MembershipClient

log = logging.getLogger(__name__)

TICKET = "/call/"
CALLS_LIMIT = 128  # under way at the same time, in each direction


class SwimRuntime:
    """`start`, then inputs from the network and from one timer, until `leave` or `close`."""

    def __init__(
        self,
        me: Member,
        config: SwimConfig,
        rng: Random,
        clock: Callable[[], float],
        on_event: Callable[[MemberEvent], None] | None,
        dialer: Dialer | None = None,
    ) -> None:
        self.swim = Swim(me, config, rng)
        self.udp = Udp(self._datagram, clock)
        self.calls = MembershipClient(dialer)
        self.counters: Counter[str] = Counter()
        self.running = False
        self._config = config
        self._clock = clock
        self._on_event = on_event
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._wakeup: float | None = None
        self._callers: dict[str, asyncio.Future[Packet]] = {}  # whose answer the machine owes
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
        if told := self._tasks - before:
            await asyncio.wait(told, timeout=self._config.probe_interval)

    async def close(self) -> None:
        self.running = False
        self._arm()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.udp.close()
        await self.calls.close()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def tell(self, event: MemberEvent) -> None:
        self.counters[type(event).__name__.lower()] += 1
        if isinstance(event, Suspected | Died):
            self.udp.doubt(event.member.address)
        if isinstance(event, Clashed):
            log.warning("somebody at %s uses my id %s", event.member.address, self.me.id)
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

    def absorb(self, members: Iterable[Member], by: str, *, joining: bool = False) -> None:
        self.swim.merge(members, self._clock(), by=by, joining=joining)
        self._drain()

    async def reply_to(self, packet: Packet) -> Packet | None:
        """Hand in a packet that came as a call; what the machine sends back is the answer."""
        if len(self._callers) >= CALLS_LIMIT:
            return None
        self.counters["calls_in"] += 1
        ticket = f"{TICKET}{self.counters['calls_in']}"  # no member can have this address
        answer: asyncio.Future[Packet] = asyncio.get_running_loop().create_future()
        self._callers[ticket] = answer
        try:
            self._receive(packet, ticket)
            if packet.kind is Kind.PING_REQ:
                await asyncio.wait((answer,), timeout=self._config.probe_timeout)
            return answer.result() if answer.done() else None
        finally:
            del self._callers[ticket]

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
        for wish in self.swim.take_wishes():
            self._grant(wish)
        for event in self.swim.take_events():
            self.tell(event)
        self._arm()

    def _arm(self) -> None:
        """One timer, at the machine's next wake-up."""
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
        elif address.startswith(TICKET):
            return  # the caller waits no more
        elif self._config.transport == "udp":
            self.counters["packets_out"] += 1
            self.udp.send(packet_codec.encode(packet), address)
        elif len(self._tasks) < CALLS_LIMIT:
            self.spawn(self._call(address, packet))

    def _grant(self, wish: Wish) -> None:
        if isinstance(wish, Dial):
            self.spawn(self._call(wish.address, wish.packet))
        elif wish.address not in self._syncing:
            self._syncing.add(wish.address)
            self.spawn(self._sync(wish.address))

    async def _call(self, address: str, packet: Packet) -> None:
        """Silence is an answer, too: the machine draws its conclusions from it."""
        self.counters["calls_out"] += 1
        try:
            answer = await self.calls.put(address, packet, self._config.probe_interval * (1 + self.swim.health))
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
            by, members = await self.calls.sync(address, self.me, self.members())
        except PeerGone as gone:
            log.debug("no exchange with %s", gone)
            return
        except Refused:
            self.counters["garbage"] += 1
            return
        finally:
            self._syncing.discard(address)
        if self.running:
            self.absorb(members, by)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a task of the membership failed", exc_info=error)
