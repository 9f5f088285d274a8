"""One gRPC channel for each address, kept while it is in use and closed soon after. Knows no protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc

from pfl_node.wire.endpoint import channel_options
from pfl_node.wire.membership_pb2_grpc import MembershipStub

IDLE = 12.0  # seconds


@dataclass(slots=True)
class Line:
    channel: grpc.aio.Channel
    stub: MembershipStub
    calls: int = 0
    idle_since: float = 0.0
    broken: bool = False


class Channels:
    def __init__(self, idle: float = IDLE) -> None:
        self._idle = idle
        self._lines: dict[str, Line] = {}
        self._reaper: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._lines)

    @asynccontextmanager
    async def stub(self, address: str) -> AsyncIterator[MembershipStub]:
        """To make calls with. A channel on which a call failed for want of an answer is not used again."""
        line = self._lines.get(address) or self._dial(address)
        line.calls += 1
        try:
            yield line.stub
        except grpc.aio.AioRpcError as error:
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                line.broken = True
                self._forget(address, line)
            raise
        finally:
            line.calls -= 1
            if line.broken and not line.calls:  # not sooner: closing a channel cancels whoever waits on it
                self._hang_up(line)
            line.idle_since = asyncio.get_running_loop().time()
            self._watch()

    async def close(self) -> None:
        if self._reaper is not None:
            self._reaper.cancel()
            self._reaper = None
        for address, line in list(self._lines.items()):
            self._forget(address, line)
            self._hang_up(line)
        if self._closing:
            await asyncio.wait(self._closing)

    def _dial(self, address: str) -> Line:
        channel = grpc.aio.insecure_channel(address, options=channel_options())
        line = self._lines[address] = Line(channel, MembershipStub(channel))
        return line

    def _forget(self, address: str, line: Line) -> None:
        if self._lines.get(address) is line:
            del self._lines[address]

    def _hang_up(self, line: Line) -> None:
        closing = asyncio.create_task(line.channel.close(None))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def _watch(self) -> None:
        if self._reaper is None and self._lines:
            self._reaper = asyncio.get_running_loop().call_later(self._idle, self._reap)

    def _reap(self) -> None:
        self._reaper = None
        now = asyncio.get_running_loop().time()
        for address, line in list(self._lines.items()):
            if not line.calls and now - line.idle_since >= self._idle:
                self._forget(address, line)
                self._hang_up(line)
        self._watch()
