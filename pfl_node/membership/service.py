"""Membership as the rest of a node sees it: bind, start, query the members, leave.

It runs the SWIM state machine: sends its packets over UDP or gRPC, performs its actions and drives its timer. All
decisions about members are made in `swim.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence, Set
from random import Random
from typing import Any

from pfl_node.address import parse_address, parse_relayed
from pfl_node.errors import ConfigError, PeerGone, Reason, Refused
from pfl_node.membership import packet_codec
from pfl_node.membership.admission import Admission
from pfl_node.membership.kernel_drops import KernelDrops
from pfl_node.membership.member import Member, Reachability, Role
from pfl_node.membership.member_calls import MemberCalls
from pfl_node.membership.member_events import (
    Action,
    Clashed,
    Died,
    FetchCredentials,
    Forged,
    JoinRefused,
    MemberEvent,
    PingCall,
    Suspected,
)
from pfl_node.membership.packet import Kind, Packet
from pfl_node.membership.record_verifier import RecordVerifier
from pfl_node.membership.sender_warnings import SenderWarnings
from pfl_node.membership.signatures import UNSIGNED, Signed
from pfl_node.membership.suspendable_clock import uptime
from pfl_node.membership.swim import Swim
from pfl_node.membership.swim_config import SwimConfig
from pfl_node.membership.udp import Udp

log = logging.getLogger(__name__)

FIRST_TRY = 2.0  # seconds that `start` waits for the seeds' first answers
RETRY, RETRY_MOST = 0.5, 2.0  # mean seconds between attempts to join; doubled each time
JOIN_TIMEOUT, JOIN_TIMEOUT_MOST = 3.0, 24.0  # timeout of an attempt; doubled each time for busy seeds
CALLER = "/call/"  # prefix of the pseudo-address of a gRPC caller; no member can have such an address
CALLS_LIMIT = 128  # concurrent calls, in each direction


class Membership:
    """Call `bind` with the port of the gRPC server, then `start`. `calls` makes gRPC calls to other members."""

    def __init__(
        self,
        me: Member,
        config: SwimConfig,
        *,
        calls: MemberCalls,
        rng: Random,
        on_event: Callable[[MemberEvent], None] | None = None,
        clock: Callable[[], float] = uptime,
        signed: Signed | None = None,
    ) -> None:
        self.swim = Swim(me, config, rng, signed or UNSIGNED)
        self.verifier = RecordVerifier(signed, calls.credentials) if signed else None
        self.udp = Udp(self._datagram, clock)
        self.warn = SenderWarnings(clock).warn
        self.counters: Counter[str] = Counter()  # packets, calls, syncs, garbage and events
        self.running = False
        self.joined = False
        self.refused = ""  # the reason why a seed refused this node for good
        self._config = config
        self._calls = calls
        self.dial_back = calls.dial_back
        self._clock = clock
        self._drops = KernelDrops()
        self._jitter = Random(f"{me.id}/join")
        self._on_event = on_event
        self._last_error: dict[str, str] = {}  # last error of each seed
        self._tried = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._wakeup: float | None = None
        self._callers: dict[str, asyncio.Future[Packet]] = {}  # gRPC callers waiting for an answer
        self._syncing: set[str] = set()

    def bind(self, host: str, port: int) -> None:
        """Bind the UDP port; raises OSError if it is in use."""
        if self._config.transport == "udp":
            self.udp.bind(host, port)

    async def start(self, seeds: Sequence[str], *, advertise: str) -> None:
        """Join the swarm under the address `advertise`.

        Seeds that do not answer are retried in the background. If a seed answers that this id is in use by another
        node, `start` raises ConfigError; if that happens later, a JoinRefused event follows.
        """
        for seed in seeds:
            parse_address(seed, what="seed")
        if self._config.transport == "udp":
            if not self.udp.bound:
                raise RuntimeError("bind the membership's UDP port first")
            await self.udp.open()
        others = tuple(dict.fromkeys(seed for seed in seeds if seed != advertise))
        self.joined = not others
        self.running = True
        self.swim.start(self._clock(), address=advertise, seeds=others)
        self._drain()
        if others:
            await self._first_try(others)

    async def leave(self) -> None:
        """Announce the departure and wait until the announcement has been sent."""
        if not self.running:
            return
        self.running = False
        self.swim.leave(self._clock())
        before = set(self._tasks)
        self._drain()
        await self.udp.flush()
        if farewells := self._tasks - before:
            await asyncio.wait(farewells, timeout=self._config.probe_interval)

    async def close(self) -> None:
        """Stop at once. Without a preceding `leave`, other members detect this as a failure."""
        self.running = False
        self._arm()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.udp.close()
        await self._calls.close()

    def set_round(self, round: int) -> None:
        self.swim.set_round(round)

    def set_reachability(self, reachability: Reachability, relays: Sequence[str] = ()) -> None:
        """Set in this member's own record whether others can connect to it, and through which members."""
        self.swim.set_reachability(reachability, relays, self._clock())
        self._drain()

    def move(self, address: str) -> None:
        self.swim.move(address, self._clock())
        self._drain()

    @property
    def me(self) -> Member:
        return self.swim.me

    @property
    def health(self) -> int:
        """Lifeguard's local health score: 0 is healthy; a slow process has a higher score and longer timeouts."""
        return self.swim.health

    @property
    def pauses(self) -> int:
        """How often this process did not run for longer than `pause` seconds."""
        return self.swim.pauses

    def get(self, member: str) -> Member | None:
        return self.swim.get(member)

    def members(self) -> tuple[Member, ...]:
        """All known members sorted by id: this one, and recently dead or departed ones, included."""
        return tuple(sorted(self.swim.members(), key=lambda member: member.id))

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

    def heard(self) -> Set[str]:
        """The ids of members that have reported about themselves; the others are known from rumours only."""
        return self.swim.heard

    # inputs

    def admit(self, newcomer: Member) -> Admission:
        admission = self.swim.admit(newcomer, self._clock())
        self._drain()
        return admission

    def ask(self, members: Iterable[str]) -> None:
        """Ping these members now: their answers carry their current rounds."""
        if self.running:
            self.swim.ask(members, self._clock())
            self._drain()

    async def merge(self, members: Sequence[Member], by: str, address: str, *, joining: bool = False) -> None:
        """Merge the member list of `by`, which listens at `address`. Returns at once if records are not signed."""
        await self._verify(self.swim.to_verify(members), by, address)
        self.swim.merge(members, self._clock(), by=by, joining=joining)
        self._drain()

    def merge_soon(self, members: Sequence[Member], by: str, address: str) -> None:
        """Merge as `merge` does, without waiting for credentials."""
        if len(self._tasks) < CALLS_LIMIT:
            self._spawn(self.merge(members, by, address))

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
        except Refused as refused:
            self.counters[str(refused.reason)] += 1
            if refused.reason is Reason.NOT_SERVED:
                self.warn(source, "refused a packet from %s: %s", source, refused.text)
            return
        self.counters["packets_in"] += 1
        self._receive(packet, source, len(data))

    def _receive(self, packet: Packet, source: str, size: int | None = None) -> None:
        self.swim.receive(packet, source, self._clock(), size)
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
            self._emit(event)
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
        elif self._config.transport == "udp" and not parse_relayed(address):
            self.counters["packets_out"] += 1
            self.udp.send(packet_codec.encode(packet), address)
        elif len(self._tasks) < CALLS_LIMIT:
            self._spawn(self._call(address, packet))

    def _perform(self, action: Action) -> None:
        if isinstance(action, PingCall):
            self._spawn(self._call(action.address, action.packet))
        elif isinstance(action, FetchCredentials):
            if len(self._tasks) < CALLS_LIMIT:
                self._spawn(self._learn_later(action))
        elif action.address not in self._syncing:
            self._syncing.add(action.address)
            self._spawn(self._sync(action.address))

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
            await self.merge(members, by, address)

    async def _learn_later(self, action: FetchCredentials) -> None:
        await self._verify([rumor.member for rumor in action.rumors], action.by, action.address)
        self.swim.learn(action, self._clock())
        self._drain()

    async def _verify(self, members: Iterable[Member], by: str, address: str) -> None:
        if self.verifier is None:
            return
        try:
            await self.verifier.verify(members, by, address)
        except Refused as refused:
            self.counters[str(refused.reason)] += 1
            self.warn(by, "did not use the credentials that %s sent: %s", by, refused.text)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _emit(self, event: MemberEvent) -> None:
        self.counters[type(event).__name__.lower()] += 1
        if isinstance(event, Suspected | Died):
            self._drops.check()
            self.udp.invalidate(event.member.address)
        if isinstance(event, Forged):
            who = event.member.id
            self.warn(event.by, "ignored a message of %s: the record of %s in it is forged", event.by, who)
            return
        if isinstance(event, Clashed):
            log.warning("another node at %s uses this node's id %s", event.member.address, self.me.id)
        if self._on_event is not None:
            try:
                self._on_event(event)
            except Exception:
                log.exception("a listener of membership events failed")

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a membership task failed", exc_info=error)

    # joining

    async def _first_try(self, seeds: Sequence[str]) -> None:
        joining = self._spawn(self._join(seeds))
        tried = asyncio.create_task(self._tried.wait())
        await asyncio.wait((joining, tried), timeout=FIRST_TRY, return_when=asyncio.FIRST_COMPLETED)
        tried.cancel()
        if self.refused:
            raise ConfigError(self.refused)

    async def _join(self, seeds: Sequence[str]) -> None:
        """Try the seeds in turn until one accepts this node or refuses it for good."""
        wait, timeout = RETRY, JOIN_TIMEOUT
        while True:
            for seed in seeds:
                await self._join_through(seed, timeout)
                if self.joined or self.refused:
                    return
            self._tried.set()
            await asyncio.sleep(wait * self._jitter.uniform(0.5, 1.5))  # many nodes may have started together
            wait, timeout = min(2 * wait, RETRY_MOST), min(2 * timeout, JOIN_TIMEOUT_MOST)

    async def _join_through(self, seed: str, timeout: float) -> None:
        try:
            by, members = await self._calls.join(seed, self.me, timeout)
        except PeerGone as error:
            log.debug("cannot join through %s", error)
        except Refused as error:
            repeated = self._last_error.get(seed) == str(error)
            self._last_error[seed] = str(error)
            log.log(logging.DEBUG if repeated else logging.WARNING, "cannot join through %s", error)
        except ConfigError as error:
            self.refused = str(error)
            self._emit(JoinRefused(self.me, self.refused))
        else:
            await self.merge(members, by, seed, joining=True)
            self.joined = True
