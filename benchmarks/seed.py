"""The bootstrap service alone and with 1,000 members: memory, time to ready, CPU, response times, false alarms.

The service is a real process. The members are simulated, each with its own socket: they join, answer probes,
refute false rumours, and send the seed as many probes, rumours and full exchanges as real members would. Traffic
between real members does not reach the seed and is left out.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count as count_up
from random import Random
from statistics import median
from typing import Any

os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc
import psutil

from benchmarks.report import show
from pfl_node.membership import membership_pb2 as pb
from pfl_node.membership import packet_codec
from pfl_node.membership.member import Member, State
from pfl_node.membership.packet import Kind, Packet, Rumor
from pfl_node.membership.swim_config import SwimConfig
from pfl_node.wire import membership_pb2_grpc, peer_pb2, peer_pb2_grpc

STARTS = 5
JOINS_PER_SECOND = 20
WATCHED = 60.0  # seconds with all members present
RUMORS = 8  # per packet
MB = 1e6
Address = tuple[str, int]


class Someone(asyncio.DatagramProtocol):
    """A member that is always alive: answers probes, also indirect ones, and refutes rumours about itself."""

    def __init__(self, me: Member) -> None:
        self.me = me
        self.refuted = 0
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, addr: Address) -> None:
        packet = packet_codec.decode(data)
        for rumor in packet.rumors:
            if rumor.member.id == self.me.id and rumor.member.state is not State.ALIVE:
                self.refuted += 1
                self.me = replace(self.me, incarnation=rumor.member.incarnation + 1)
        if packet.kind is Kind.PING:
            self.say(Packet(Kind.ACK, self.me, seq=packet.seq, target=self.me.id), addr)
        elif packet.kind is Kind.PING_REQ:
            self.say(Packet(Kind.ACK, self.me, seq=packet.seq, target=packet.target), addr)

    def say(self, packet: Packet, to: Address) -> None:
        self.transport.sendto(packet_codec.encode(packet), to)


class Exchanges(membership_pb2_grpc.MembershipServicer):
    """Answers the seed's full exchanges on behalf of any member."""

    def __init__(self, members: list[Someone], rng: Random) -> None:
        self._members, self._rng = members, rng

    async def Sync(self, request: pb.State, context: Any) -> pb.State:  # noqa: N802, ARG002
        return _state(self._members, self._rng)


def _state(members: list[Someone], rng: Random) -> pb.State:
    return pb.State(
        sender=packet_codec.to_wire(rng.choice(members).me), members=packet_codec.to_wires(m.me for m in members)
    )


class Seed:
    """The seed's process and its API."""

    def __init__(self) -> None:
        began = time.perf_counter()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bootstrap", "--listen", "127.0.0.1:0", "--log-level", "warning"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        line = next(line for line in self.process.stdout if "--peer-seed" in line)
        self.ready = time.perf_counter() - began
        self.address = line.split("--peer-seed ")[1].split()[0].strip('",')
        self._watch = psutil.Process(self.process.pid)

    @property
    def rss(self) -> float:
        return float(self._watch.memory_info().rss) / MB

    @property
    def cpu(self) -> float:
        times = self._watch.cpu_times()
        return float(times.user + times.system)

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


async def crowd(seed: Seed, count: int) -> dict[str, Any]:
    rng = Random(0)
    members: list[Someone] = []
    server = grpc.aio.server()
    membership_pb2_grpc.add_MembershipServicer_to_server(Exchanges(members, rng), server)
    ports = [server.add_insecure_port("127.0.0.1:0") for _ in range(count)]
    await server.start()
    channel = grpc.aio.insecure_channel(seed.address)
    ask = peer_pb2_grpc.PeerStub(channel).GetStatus
    talking = asyncio.create_task(_talk(members, seed.address, rng))
    try:
        began = time.monotonic()
        await asyncio.gather(*(_join(i, port, seed.address, members) for i, port in enumerate(ports)))
        await _until(ask, lambda told: told["peers"] >= count)
        joined = time.monotonic() - began
        spent, began = seed.cpu, time.monotonic()
        answers = await _watch(ask, members, seed.address, rng)
        busy = (seed.cpu - spent) / (time.monotonic() - began)
        facts = json.loads((await ask(peer_pb2.StatusRequest())).json)
        size = seed.rss
    finally:
        talking.cancel()
        await channel.close(None)
        for member in members:
            member.transport.close()
        await server.stop(None)
    alarms = facts["counters"]
    return {
        "members": count,
        "RSS MB": size,
        "s until all are listed": joined,
        "CPU %": 100 * busy,
        "median answer ms": 1000 * median(answers),
        "worst": 1000 * max(answers),
        "alive at the end": facts["peers"],
        "suspected": alarms.get("suspected", 0),
        "died": alarms.get("died", 0),
    }


async def _join(index: int, port: int, seed: str, members: list[Someone]) -> None:
    await asyncio.sleep(index / JOINS_PER_SECOND)
    me = Member(
        f"{index:032x}", f"m{index:04d}", address=f"127.0.0.1:{port}", role="node", run="crowd", incarnation=1
    )
    one = Someone(me)
    await asyncio.get_running_loop().create_datagram_endpoint(lambda: one, local_addr=("127.0.0.1", port))
    async with grpc.aio.insecure_channel(seed) as channel:
        stub = membership_pb2_grpc.MembershipStub(channel)
        await stub.Join(pb.JoinRequest(member=packet_codec.to_wire(me)), timeout=60)
    members.append(one)


async def _talk(members: list[Someone], seed: str, rng: Random) -> None:
    """Send the seed its share of probes and rumours: each member probes one random member per second, and sends
    rumours to three random members five times per second."""
    config = SwimConfig()
    host, _, port = seed.rpartition(":")
    to = (host, int(port))
    told = config.gossip_fanout / config.gossip_interval * config.probe_interval
    for number in count_up():
        await asyncio.sleep(config.probe_interval / told)
        if not members:
            continue
        one = rng.choice(members)
        news = tuple(Rumor(rng.choice(members).me) for _ in range(RUMORS))
        one.say(Packet(Kind.GOSSIP, one.me, rumors=news), to)
        if number % int(told) == 0:
            one.say(Packet(Kind.PING, one.me, seq=number, target=""), to)


async def _until(ask: Any, so: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    end = time.monotonic() + 300
    while True:
        told: dict[str, Any] = json.loads((await ask(peer_pb2.StatusRequest(), timeout=30)).json)
        if so(told):
            return told
        if time.monotonic() > end:
            raise SystemExit(f"after 300 s the seed lists {told['peers']} members")
        await asyncio.sleep(0.2)


async def _watch(ask: Any, members: list[Someone], seed: str, rng: Random) -> list[float]:
    """For a minute, poll the seed's status and run as many full exchanges as that many members would."""
    exchange = SwimConfig().sync_interval
    answers, end, due = [], time.monotonic() + WATCHED, time.monotonic()
    async with grpc.aio.insecure_channel(seed) as channel:
        stub = membership_pb2_grpc.MembershipStub(channel)
        while time.monotonic() < end:
            began = time.perf_counter()
            await ask(peer_pb2.StatusRequest(), timeout=30)
            answers.append(time.perf_counter() - began)
            if time.monotonic() >= due:
                due += exchange
                await stub.Sync(_state(members, rng))
            await asyncio.sleep(0.1)
    return answers


def main() -> None:
    counts = [int(n) for n in sys.argv[1:]] or [100, 1000]
    starts = []
    for _ in range(STARTS):
        seed = Seed()
        starts.append((seed.ready, seed.cpu, seed.rss))
        seed.close()
    rows = []
    for count in counts:
        seed = Seed()
        try:
            rows.append(asyncio.run(crowd(seed, count)))
        finally:
            seed.close()
    ready, cpu, rss = (median(column) for column in zip(*starts, strict=True))
    notes = [
        f"alone: ready in {ready:.2f} s ({cpu:.2f} s of CPU), RSS {rss:.1f} MB (median of {STARTS})",
        "aims: < 1 s, < 60 MB",
    ]
    show("seed: the bootstrap service and its members", rows, notes)


if __name__ == "__main__":
    main()
