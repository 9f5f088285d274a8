"""Many cases at once at one node, each answer counted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, cast

import grpc

from pfl_node.wire import peer_pb2 as pb
from tests.fuzz.cases import Case, CaseGenerator
from tests.fuzz.findings import Findings
from tests.fuzz.sender import LONG, Sender

WORKERS = 24
TRIES = 5
DATAGRAMS_AT_ONCE = 40  # datagrams: then wait until the node has read them, or the kernel drops some


class Batch:
    def __init__(self, sender: Sender, findings: Findings, asked: Callable[[], Awaitable[object]]) -> None:
        self._sender = sender
        self._findings = findings
        self._asked = asked  # a question to the node; its answer says that it has come so far
        self._datagrams = 0

    async def send_all(self, cases: Iterable[Case], workers: int = WORKERS) -> None:
        waiting = iter(cases)

        async def work() -> None:
            for case in waiting:  # shared: each takes the next one
                self._findings.add(case, await self._sender.send(case))
                self._datagrams += case.way == "udp"
                if case.way == "udp" and self._datagrams % DATAGRAMS_AT_ONCE == 0:
                    await self._asked()

        async with asyncio.TaskGroup() as group:
            for _ in range(workers):
                group.create_task(work())


def cases_of(generator: CaseGenerator, numbers: Iterable[int]) -> Iterable[Case]:
    return (generator.case(number) for number in numbers)


class Watcher:
    """Asks a node how it is, on a connection of its own."""

    def __init__(self, address: str) -> None:
        channel: Any = grpc.aio.insecure_channel(address)
        self._channel = channel
        self._status = channel.unary_unary("/pfl.v1.Peer/GetStatus", response_deserializer=pb.Status.FromString)

    async def status(self) -> dict[str, Any]:
        found: pb.Status = await self._ask()
        return {"id": found.id, "state": found.state, "round": found.round, **json.loads(found.json)}

    async def _ask(self) -> pb.Status:
        """Once more where the connection was lost: others may have been the reason."""
        for _ in range(TRIES):
            try:
                return cast(pb.Status, await self._status(b"", timeout=LONG, wait_for_ready=True))
            except grpc.aio.AioRpcError as error:
                if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
                    raise
        raise TimeoutError("the node cannot be asked")

    async def until(self, holds: Callable[[dict[str, Any]], bool], patience: float = 1800.0) -> dict[str, Any]:
        """Its status once it is so."""
        async with asyncio.timeout(patience):
            while True:
                if holds(found := await self.status()):
                    return found
                await asyncio.sleep(0.1)

    async def close(self) -> None:
        await self._channel.close()
