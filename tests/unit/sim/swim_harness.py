"""N membership machines on one virtual clock and a network with latency, loss, partitions, crashes and pauses.

One seed determines everything. Full exchanges and joins are calls: packet loss does not affect them, only
partitions do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import heappop, heappush
from random import Random

from pfl_node.membership.member import Member, State
from pfl_node.membership.member_events import Action, FetchCredentials, MemberEvent, Sync
from pfl_node.membership.packet import Packet
from pfl_node.membership.signatures import UNSIGNED, Proof, Signed
from pfl_node.membership.swim import Swim
from pfl_node.membership.swim_config import SwimConfig

CALL = "call:"  # address prefix of the answer to a call


@dataclass(slots=True, eq=False)
class Host:
    """One state machine and its events."""

    swim: Swim
    address: str
    events: list[tuple[float, MemberEvent]] = field(default_factory=list)
    up: bool = True
    asleep_until: float = 0.0
    missed: list[Callable[[], None]] = field(default_factory=list)
    wakeup: float | None = None
    packets: int = 0
    signed: Signed | None = None

    @property
    def id(self) -> str:
        return self.swim.me.id


class SwimNetwork:
    def __init__(
        self,
        seed: int = 0,
        *,
        config: SwimConfig | None = None,
        latency: float = 0.001,
        jitter: float = 0.0,
        loss: float = 0.0,
        sign: Callable[[str], Signed] | None = None,
    ) -> None:
        """`sign` gives the keys of the member with an id; without it nobody signs."""
        self.now = 0.0
        self.config = config or SwimConfig()
        self.hosts: dict[str, Host] = {}  # by address
        self.transcript: list[str] | None = None
        self._latency, self._jitter, self._loss = latency, jitter, loss
        self._sign = sign
        self._rng = Random(seed)
        self._queue: list[tuple[float, int, Callable[[], object]]] = []
        self._count = 0
        self._mute: set[Host] = set()
        self._side: dict[str, int] = {}  # by address; partitioned from other sides

    # actions of a test

    def add(self, member: Member, *, seeds: Iterable[str] = ()) -> Host:
        signed = self._sign(member.id) if self._sign else None
        swim = Swim(member, self.config, Random(self._rng.getrandbits(64)), signed or UNSIGNED)
        host = Host(swim, member.address, signed=signed)
        self.hosts[member.address] = host
        seeds = [seed for seed in seeds if seed != member.address]
        host.swim.start(self.now, seeds=seeds)
        self._drain(host)
        for seed in seeds:
            self.join(host, seed)
        return host

    def grow(self, count: int, *, spread: float = 0.0) -> list[Host]:
        """Add `count` nodes that join through the first within `spread` seconds."""
        first = self.add(node(0))
        later = [self._rng.uniform(0, spread) for _ in range(1, count)]
        for index, delay in enumerate(later, start=1):
            self.after(delay, partial(self.add, node(index), seeds=[first.address]))
        self.run(spread)
        return list(self.hosts.values())

    def kill(self, *hosts: Host) -> None:
        for host in hosts:
            host.up = False

    def leave(self, host: Host) -> None:
        host.swim.leave(self.now)
        self._drain(host)
        host.up = False

    def sleep(self, host: Host, seconds: float) -> None:
        """Stop the process; its datagrams queue in the socket."""
        host.asleep_until = self.now + seconds
        self.after(seconds, lambda: self._wake(host))

    def mute(self, *hosts: Host) -> None:
        """Drop the datagrams of these hosts, but not their calls."""
        self._mute.update(hosts)

    def split(self, *sides: Iterable[Host]) -> None:
        self._side = {host.address: number for number, side in enumerate(sides) for host in side}

    def heal(self) -> None:
        self._side = {}

    def after(self, seconds: float, do: Callable[[], object]) -> None:
        self._count += 1
        heappush(self._queue, (self.now + seconds, self._count, do))

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self._queue and self._queue[0][0] <= end:
            self.now, _, do = heappop(self._queue)
            do()
        self.now = end

    def run_until(self, done: Callable[[], bool], *, at_most: float, step: float = 0.1) -> float:
        """Run until `done()` and return the virtual seconds that took."""
        start = self.now
        while not done():
            if self.now - start >= at_most:
                raise AssertionError(f"condition not met after {at_most} virtual seconds")
            self.run(step)
        return self.now - start

    # questions of a test

    @property
    def running(self) -> list[Host]:
        return [host for host in self.hosts.values() if host.up]

    def seen(self, of: str, states: set[State], by: Iterable[Host] | None = None) -> bool:
        """Do all other running hosts see the member in one of these states?"""
        hosts = [host for host in (by or self.running) if host.id != of]
        return all((known := host.swim.get(of)) is not None and known.state in states for host in hosts)

    def complete(self, hosts: Iterable[Host] | None = None) -> bool:
        """Does every host see every other as alive?"""
        group = list(hosts or self.running)
        ids = {host.id for host in group}
        return all(
            ids == {m.id for m in host.swim.members() if m.state is State.ALIVE and m.id in ids} for host in group
        )

    def count(self, kind: type[MemberEvent], *, of: str | None = None) -> int:
        return sum(
            isinstance(event, kind) and of in (None, event.member.id)
            for host in self.hosts.values()
            for _, event in host.events
        )

    # implementation

    def join(self, host: Host, seed: str) -> None:
        self.after(2 * self._delay(), lambda: self._admit(host, seed))

    def _admit(self, host: Host, seed: str) -> None:
        server = self._reach(host, seed)
        if server is None or not host.up:
            self.after(1.0, lambda: self.join(host, seed))
            return
        self.give_credentials(host, server, [host.id])
        admission = server.swim.admit(host.swim.me, self.now)
        self._drain(server)
        if admission.accepted:
            known, by = server.swim.members(), server.id
            self.after(self._delay(), lambda: self._merge(host, known, by, joining=True))
        elif admission.again:
            self.after(admission.again, lambda: self.join(host, seed))
        else:
            self._note("refused", host.address, admission.reason)

    def _call(self, host: Host, action: Action) -> None:
        if isinstance(action, Sync):
            self._sync(host, action.address)
        elif isinstance(action, FetchCredentials):
            if (source := self._reach(host, action.address)) is not None:
                self.give_credentials(source, host, [rumor.member.id for rumor in action.rumors])
                self._when_awake(host, lambda: host.swim.learn(action, self.now))
        elif (server := self._reach(host, action.address)) is not None and host.up:
            self._when_awake(server, lambda: server.swim.receive(action.packet, CALL + host.address, self.now))

    def _sync(self, host: Host, address: str) -> None:
        server = self._reach(host, address)
        if server is None or not host.up:
            return
        known = server.swim.members()
        self._merge(server, host.swim.members(), host.id)
        self.after(self._delay(), lambda: self._merge(host, known, server.id))

    def _merge(self, host: Host, members: list[Member], by: str, *, joining: bool = False) -> None:
        if host.signed:
            check = host.signed.verify
            unknown = [m.id for m in host.swim.to_verify(members) if check(m) is Proof.UNKNOWN]
            source = next((h for h in self.hosts.values() if h.id == by), None) if unknown else None
            if source is not None:
                self.give_credentials(source, host, unknown)
        self._when_awake(host, lambda: host.swim.merge(members, self.now, by=by, joining=joining))

    def give_credentials(self, source: Host, host: Host, ids: Iterable[str]) -> None:
        if source.signed and host.signed:
            for credential in map(source.signed.keys.credential, ids):
                if credential is not None:
                    host.signed.keys.add(credential)

    def _reach(self, host: Host, address: str) -> Host | None:
        server = self.hosts.get(address)
        apart = self._side.get(host.address) != self._side.get(address)
        return None if server is None or not server.up or server.asleep_until > self.now or apart else server

    def _delay(self) -> float:
        return self._latency + self._rng.uniform(0, self._jitter)

    def _post(self, sender: Host, address: str, packet: Packet) -> None:
        if address.startswith(CALL):
            caller = address.removeprefix(CALL)
            self.after(self._delay(), lambda: self._deliver(sender.address, caller, packet))
            return
        sender.packets += 1
        if sender in self._mute or self.hosts.get(address) in self._mute:
            return
        if self._rng.random() < self._loss or self._side.get(sender.address) != self._side.get(address):
            return
        self.after(self._delay(), lambda: self._deliver(sender.address, address, packet))

    def _deliver(self, source: str, address: str, packet: Packet) -> None:
        host = self.hosts.get(address)
        if host is not None:
            if self.transcript is not None:
                self._note(packet.kind, source, address, packet.seq, len(packet.rumors))
            self._when_awake(host, lambda: host.swim.receive(packet, source, self.now))

    def _when_awake(self, host: Host, do: Callable[[], None]) -> None:
        if not host.up:
            return
        if host.asleep_until > self.now:
            host.missed.append(do)
            return
        do()
        self._drain(host)

    def _wake(self, host: Host) -> None:
        missed, host.missed = host.missed, []
        for do in missed:
            self._when_awake(host, do)
        self._tick(host)

    def _tick(self, host: Host) -> None:
        host.wakeup = None
        self._when_awake(host, lambda: host.swim.tick(self.now))

    def _drain(self, host: Host) -> None:
        for address, packet in host.swim.take_packets():
            self._post(host, address, packet)
        for event in host.swim.take_events():
            host.events.append((self.now, event))
            self._note(type(event).__name__, host.address, event.member.id)
        for action in host.swim.take_actions():
            self.after(2 * self._delay(), partial(self._call, host, action))
        when = host.swim.next_wakeup()
        if when is not None and (host.wakeup is None or when < host.wakeup):
            host.wakeup = when
            self.after(max(when - self.now, 0.0), lambda: self._at(host, when))

    def _at(self, host: Host, when: float) -> None:
        if host.wakeup == when:
            self._tick(host)

    def _note(self, *words: object) -> None:
        if self.transcript is not None:
            self.transcript.append(" ".join([f"{self.now:.6f}", *map(str, words)]))


def node(index: int, **changes: object) -> Member:
    member = Member(id=f"n{index:03}", name=f"node-{index}", address=f"10.0.0.1:{7000 + index}")
    return replace(member, **changes)  # type: ignore[arg-type]
