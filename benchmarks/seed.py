"""The bootstrap service alone and with 1,000 members: memory, time to ready, CPU, answers, false alarms.

The service is the real one, in a process of its own. The members are real memberships on sockets of their own; but
they share one gRPC server, and make no full exchanges between each other, which would be their work and not the
seed's. With the seed they make as many as real ones would.
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
from random import Random
from statistics import median
from typing import Any

os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc
import psutil

from benchmarks.report import show
from pfl_node.membership import codec
from pfl_node.membership.config import SwimConfig
from pfl_node.membership.member import Member
from pfl_node.membership.service import Membership
from pfl_node.wire import membership_pb2 as pb
from pfl_node.wire import membership_pb2_grpc, peer_pb2, peer_pb2_grpc
from pfl_node.wire.endpoint import Endpoint

STARTS = 5
JOINS_PER_SECOND = 20
WATCHED = 60.0  # seconds with everybody there
OURS = replace(SwimConfig(), sync_interval=1e9)
MB = 1e6


class Door(Endpoint):
    """A member's address, served by somebody else."""

    def open(self, port: int) -> None:
        self.host, self.port = "127.0.0.1", port


class Exchanges(membership_pb2_grpc.MembershipServicer):
    """The seed's full exchanges, answered for whichever member it asks."""

    def __init__(self, members: list[Membership], rng: Random) -> None:
        self._members, self._rng = members, rng

    async def Sync(self, request: pb.State, context: Any) -> pb.State:  # noqa: N802, ARG002
        one = self._rng.choice(self._members)
        return pb.State(sender=codec.to_wire(one.me), members=codec.to_wires(one.members()))


class Seed:
    """The process, and questions to it."""

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
        self.address = line.split("--peer-seed ")[1].split()[0]
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
    members: list[Membership] = []
    server = grpc.aio.server()
    membership_pb2_grpc.add_MembershipServicer_to_server(Exchanges(members, rng), server)
    ports = [server.add_insecure_port("127.0.0.1:0") for _ in range(count)]
    await server.start()
    channel = grpc.aio.insecure_channel(seed.address)
    ask = peer_pb2_grpc.PeerStub(channel).GetStatus
    try:
        began = time.monotonic()
        await asyncio.gather(*(_join(i, port, seed.address, members) for i, port in enumerate(ports)))
        facts = await _until(ask, lambda told: told["peers"] >= count)
        joined = time.monotonic() - began
        spent, began = seed.cpu, time.monotonic()
        answers = await _watch(ask, members, seed.address, rng)
        busy = (seed.cpu - spent) / (time.monotonic() - began)
        facts = json.loads((await ask(peer_pb2.StatusRequest())).json)
    finally:
        await channel.close(None)
        for member in members:
            await member.close()
        await server.stop(None)
    alarms = facts["counters"]
    return {
        "members": count,
        "RSS MB": seed.rss,
        "s until all are listed": joined,
        "CPU %": 100 * busy,
        "median answer ms": 1000 * median(answers),
        "worst": 1000 * max(answers),
        "alive at the end": facts["peers"],
        "suspected": alarms.get("suspected", 0),
        "died": alarms.get("died", 0),
    }


async def _join(index: int, port: int, seed: str, members: list[Membership]) -> None:
    await asyncio.sleep(index / JOINS_PER_SECOND)
    name = f"m{index:04d}"
    me = Member(id=f"{index:032x}", name=name, address="", role="node", run="crowd", incarnation=1)
    member, door = Membership(me, OURS, rng=Random(index)), Door()
    door.open(port)
    member.attach(door)
    member.bind(door.host, port)
    await member.start([seed])
    members.append(member)


async def _until(ask: Any, so: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    end = time.monotonic() + 300
    while True:
        told: dict[str, Any] = json.loads((await ask(peer_pb2.StatusRequest(), timeout=30)).json)
        if so(told):
            return told
        if time.monotonic() > end:
            raise SystemExit(f"after 300 s the seed lists {told['peers']} members")
        await asyncio.sleep(0.2)


async def _watch(ask: Any, members: list[Membership], seed: str, rng: Random) -> list[float]:
    """Ask now and then how it is, and exchange with it as often as so many members would, for a minute."""
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
                one = rng.choice(members)
                await stub.Sync(pb.State(sender=codec.to_wire(one.me), members=codec.to_wires(one.members())))
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
