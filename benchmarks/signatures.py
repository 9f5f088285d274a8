"""What signed member records cost: bytes, CPU and time to converge, signed against unsigned in one run.

    python -m benchmarks.signatures [members] [joining] [real]

The first table is about single records. The second has 1,000 state machines on virtual time, with the settings
that TLS implies: 50 join at once, then one crashes and one joins per second. The third has 30 real memberships in
one process, over gRPC with TLS on loopback. Unsigned with TLS is what version 1 of the protocol did: every member
that hears of a newcomer dials it.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

os.environ.setdefault("GRPC_VERBOSITY", "NONE")

from benchmarks.report import show
from pfl_node.membership import packet_codec
from pfl_node.membership.member import Member
from pfl_node.membership.member_events import Action, Died, FetchCredentials
from pfl_node.membership.packet import Packet
from pfl_node.membership.record_verifier import RecordVerifier
from pfl_node.membership.service import Membership
from pfl_node.membership.signatures import Signed
from pfl_node.membership.swim_config import SwimConfig
from pfl_node.security.identity_keys import IdentityKeys, Known
from pfl_node.wire.endpoint import Endpoint
from pfl_node.wire.membership_service import attach_membership
from pfl_node.wire.tls import Tls
from tests.identities import Site
from tests.unit.membership.keyed_members import Keyed
from tests.unit.sim.swim_harness import Host, SwimNetwork

SIGNED = SwimConfig.of(SwimConfig(transport="grpc"), secure=True)
UNSIGNED = replace(SIGNED, packet_bytes=1200)  # as version 1 was
CHURN = 5  # virtual seconds with one crash and one newcomer each
PACKET = 45  # bytes of a packet without its records
DIALLED = 12.0  # seconds for which an unused connection stays open
LATENCY = 0.005
START = 1e9


def member(number: int, id: str) -> Member:
    return Member(id, f"node-{number:04d}", f"192.0.2.{number % 250}:7000", run="default", incarnation=1)


def wire_bytes(member: Member) -> int:
    return 3 + packet_codec.to_wire(member).ByteSize()  # with the tag and the length of its field


def record_size(*, signed: bool) -> int:
    keyed = Keyed(1)
    plain = member(0, keyed.ids[0])
    return wire_bytes(keyed.sign(plain.id).sign(plain) if signed else plain)


# -- single records --------------------------------------------------------------------------------------------


def timed(work: Callable[[], object], times: int) -> float:
    """Microseconds of CPU time for one call."""
    began = time.process_time()
    for _ in range(times):
        work()
    return 1e6 * (time.process_time() - began) / times


def one_record(ca: str | None, count: int) -> dict[str, Any]:
    keyed = Keyed(count, ca=ca, clock=time.time)
    mine = keyed.sign(keyed.ids[0])
    plain = member(0, keyed.ids[0])
    sealed = mine.sign(plain)
    seal = sealed.seal
    assert seal

    def verify() -> None:
        mine._verified.clear()
        mine.verify(sealed)

    credential = keyed.credential(keyed.ids[1])
    cpu, longest = asyncio.run(whole_list(keyed))
    return {
        "trust": "CA" if ca else "pinned ids",
        "record, B": wire_bytes(plain),
        "signed": wire_bytes(sealed),
        "credential, once": len(credential),
        "sign µs": timed(lambda: mine.sign(plain), 1000),
        "verify": timed(verify, 1000),
        "from the cache": timed(lambda: mine.verify(sealed), 1000),
        "check a credential": timed(lambda: keyed.sign(keyed.ids[0]).keys.add(credential), 200)
        - timed(lambda: keyed.sign(keyed.ids[0]), 200),
        f"{count:,} records and credentials: CPU ms": 1000 * cpu,
        "longest stop of the loop": 1000 * longest,
    }


async def whole_list(keyed: Keyed) -> tuple[float, float]:
    """A newcomer verifies everyone: CPU time, and the longest part of it in which nothing else could run."""
    credentials = {id: keyed.credential(id) for id in keyed.ids}
    records = [keyed.sign(id).sign(member(n, id)) for n, id in enumerate(keyed.ids)]

    async def fetch(_: str, ids: Sequence[str]) -> list[bytes]:
        return [credentials[id] for id in ids]

    verifier = RecordVerifier(keyed.sign(keyed.ids[0]), fetch)
    stops: list[float] = []

    async def watch() -> None:
        while True:
            began = time.process_time()  # of this process only: the machine may be busy
            await asyncio.sleep(0)
            stops.append(time.process_time() - began)

    gc.collect()
    watching = asyncio.create_task(watch())
    cpu = time.process_time()
    await verifier.verify(records, "seed", "192.0.2.1:7000")
    cpu = time.process_time() - cpu
    watching.cancel()
    return cpu, max(stops)


# -- a large swarm on virtual time -----------------------------------------------------------------------------


class Counting(SwimNetwork):
    """Counts the bytes of packets, exchanges and credentials, and the connections that they need. All records
    have about the same size."""

    def __init__(self, record: int, sign: Callable[[str], Signed] | None) -> None:
        super().__init__(1, config=SIGNED if sign else UNSIGNED, latency=LATENCY, jitter=LATENCY, sign=sign)
        self.bytes = self.dialled = 0
        self._record = record
        self._open: dict[tuple[str, str], float] = {}

    def _post(self, sender: Host, address: str, packet: Packet) -> None:
        self.bytes += PACKET + self._record * (1 + len(packet.rumors))
        self._dial(sender.address, address)
        super()._post(sender, address, packet)

    def _dial(self, source: str, address: str) -> None:
        if self._open.get((source, address), -DIALLED) + DIALLED < self.now:
            self.dialled += 1
        self._open[source, address] = self.now

    def _call(self, host: Host, action: Action) -> None:
        if not isinstance(action, FetchCredentials):
            self._dial(host.address, action.address)
        super()._call(host, action)

    def _merge(self, host: Host, members: list[Member], by: str, *, joining: bool = False) -> None:
        self.bytes += self._record * len(members)
        super()._merge(host, members, by, joining=joining)

    def give_credentials(self, source: Host, host: Host, ids: Any) -> None:
        wanted = list(ids)
        if source.signed and wanted:
            self.bytes += sum(len(source.signed.keys.credential(id) or b"") + 36 for id in wanted)
            self._dial(host.address, source.address)
        super().give_credentials(source, host, wanted)


class Large:
    """A swarm of `count` members that know each other; `more` others have keys and are not there yet."""

    def __init__(self, count: int, more: int, *, signed: bool) -> None:
        keyed = Keyed(count + more, clock=lambda: START + self.net.now)
        shared: dict[str, Known] = {}
        for id in keyed.ids if signed else ():
            keys = keyed.sign(id).keys
            assert isinstance(keys, IdentityKeys)
            shared[id] = keys._known[id]
        self.net = Counting(record_size(signed=signed), keyed.sign if signed else None)
        self._left = [member(n, id) for n, id in enumerate(keyed.ids)]
        self._left = [Member(m.id, m.name, f"192.0.2.1:{n + 1}", incarnation=1) for n, m in enumerate(self._left)]
        for one in self._left[:count]:
            self.net.add(one)
        records = [host.swim.me for host in self.net.running]
        for host in self.net.running:
            for record in records:
                if record.id != host.id:
                    host.swim._view.roster.put(record)
            host.swim._view.rumors.drop(host.id)
            if host.signed and isinstance(host.signed.keys, IdentityKeys):
                host.signed.keys._known.update({record.id: shared[record.id] for record in records})
        self._left = self._left[count:]
        self._rng = Random(2)
        self.net.run(2.0)

    def join(self) -> Host:
        seed = self.net.running[0]
        return self.net.add(self._left.pop(), seeds=[seed.address])

    def know(self, hosts: Sequence[Host]) -> bool:
        """Do all know these, and these all?"""
        ids = [host.id for host in hosts]
        running = self.net.running
        if any(len(host.swim._view.roster) < len(running) - 1 for host in hosts):
            return False
        return all(host.id == id or host.swim.get(id) is not None for host in running for id in ids)

    def met(self, new: Host) -> bool:
        return not new.up or all(h is new or h.swim.get(new.id) is not None for h in self.net.running)

    def forgotten(self, victim: Host) -> bool:
        found = (host.swim.get(victim.id) for host in self.net.running)
        return not any(known is not None and known.state.present for known in found)

    def crash(self) -> Host:
        victim = self._rng.choice(self.net.running[1:])
        self.net.kill(victim)
        return victim


def large_swarm(count: int, joining: int, *, signed: bool) -> list[dict[str, Any]]:
    swarm = Large(count, joining + CHURN, signed=signed)
    rows = []
    for what, phase in (("join of " + str(joining), partial(_join, joining)), ("churn", _churn)):
        net = swarm.net
        before, began, cpu = (net.bytes, net.dialled), net.now, time.process_time()
        joined, died = phase(swarm)
        seconds, nodes = net.now - began, len(net.running)
        cpu = time.process_time() - cpu
        rows.append(
            {
                "phase": what,
                "records": "signed" if signed else "unsigned",
                "members": nodes,
                "all known after s": joined,
                "crashes seen after s": died,
                "MB": (net.bytes - before[0]) / 1e6,
                "kB/s per member": (net.bytes - before[0]) / 1e3 / seconds / nodes,
                "connections": net.dialled - before[1],
                "CPU ms per member and s": 1000 * cpu / seconds / nodes,
                "false deaths": _false_deaths(net),
            }
        )
        print(rows[-1], file=sys.stderr, flush=True)  # a run with 1,000 members takes minutes
    return rows


def _join(joining: int, swarm: Large) -> tuple[float, float | str]:
    began = swarm.net.now
    new = [swarm.join() for _ in range(joining)]
    swarm.net.run_until(lambda: swarm.know(new), at_most=300, step=0.5)
    took = swarm.net.now - began
    swarm.net.run(max(10.0 - took, 0.0))
    return took, "-"


def _churn(swarm: Large) -> tuple[float, float]:
    """The longest time until all knew a newcomer, and until all knew of a crash."""
    net = swarm.net
    waiting: list[tuple[float, int, Callable[[], bool]]] = []
    slowest = [0.0, 0.0]
    for second in range(CHURN + 120):
        if second < CHURN:
            victim, new = swarm.crash(), swarm.join()
            waiting += [(net.now, 0, partial(swarm.met, new)), (net.now, 1, partial(swarm.forgotten, victim))]
        net.run(1.0)
        for entry in [entry for entry in waiting if entry[2]()]:
            slowest[entry[1]] = max(slowest[entry[1]], net.now - entry[0])
            waiting.remove(entry)
        if not waiting:
            break
    return slowest[0], slowest[1] if not waiting else float("inf")


def _false_deaths(net: SwimNetwork) -> int:
    alive = {host.id for host in net.running}
    return sum(type(e) is Died and e.member.id in alive for host in net.hosts.values() for _, e in host.events)


# -- real connections ------------------------------------------------------------------------------------------


async def real(count: int, folder: Path, *, signed: bool) -> dict[str, Any]:
    site = Site(folder)
    tls = [site.tls(f"n{n}") for n in range(count)]
    dials = 0
    async with AsyncExitStack() as stack:
        places = []
        for one in tls:
            dial = one.dialer.dial

            async def counted(*words: Any, dial: Any = dial, **more: Any) -> Any:
                nonlocal dials
                dials += 1
                return await dial(*words, **more)

            one.dialer.dial = counted  # type: ignore[method-assign]
            places.append(await _listen(one, stack, signed=signed))
        wall, cpu = time.perf_counter(), time.process_time()
        seed = places[0]
        await seed[1].start([], advertise=seed[0].address)
        await asyncio.gather(*(m.start([seed[0].address], advertise=e.address) for e, m in places[1:]))
        while not all(len(m.alive(role=None)) == count - 1 for _, m in places):
            await asyncio.sleep(0.1)
            if time.perf_counter() - wall > 240:
                break
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        known = mean(len(m.alive(role=None)) for _, m in places)
    return {
        "records": "signed" if signed else "unsigned",
        "members": count,
        "all know all after s": wall,
        "CPU s": cpu,
        "TLS connections": dials,
        "known to each": known,
    }


async def _listen(tls: Tls, stack: AsyncExitStack, *, signed: bool) -> tuple[Endpoint, Membership]:
    endpoint = Endpoint(tls=tls)
    me = Member(tls.id, "node", incarnation=1)
    membership = attach_membership(
        endpoint, me, SwimConfig(transport="auto"), rng=Random(tls.id), dialer=tls.dialer, signatures=signed
    )
    await endpoint.bind("127.0.0.1:0", membership.bind)
    await endpoint.start()
    stack.push_async_callback(endpoint.stop, 0)
    stack.push_async_callback(membership.close)
    return endpoint, membership


def main() -> None:
    count, joining, small = [*map(int, sys.argv[1:]), *(1000, 50, 30)[len(sys.argv) - 1 :]]
    load = f"load {os.getloadavg()[0]:.1f}"
    show("signatures: single records", [one_record(ca, count) for ca in ("the CA", None)], [load])
    rows = [row for signed in (False, True) for row in large_swarm(count, joining, signed=signed)]
    rows.sort(key=lambda row: str(row["phase"]), reverse=True)
    show("signatures: a large swarm on virtual time", rows, ["one process simulates all members"])
    with TemporaryDirectory() as place:
        rows = [asyncio.run(real(small, Path(place) / str(signed), signed=signed)) for signed in (False, True)]
    show("signatures: real connections", rows, ["all members in one process, TLS on loopback", load])


if __name__ == "__main__":
    main()
