"""One gRPC channel for each address, kept while it is in use and closed soon after. Knows no protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc

from pfl_node.errors import PeerGone
from pfl_node.types import PeerId
from pfl_node.wire.dialer import Dialer, Link
from pfl_node.wire.membership_pb2_grpc import MembershipStub

IDLE = 12.0  # seconds
CONNECT_TIMEOUT = 5.0


@dataclass(slots=True)
class MembershipChannel:
    link: Link
    stub: MembershipStub
    calls: int = 0
    idle_since: float = 0.0
    broken: bool = False  # not to be used again


class MembershipChannels:
    def __init__(self, idle: float = IDLE, dialer: Dialer | None = None) -> None:
        self._idle = idle
        self._dialer = dialer or Dialer()
        self._dialling: dict[str, asyncio.Task[MembershipChannel]] = {}
        self._lines: dict[str, MembershipChannel] = {}
        self._reaper: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._lines)

    @asynccontextmanager
    async def stub(
        self, address: str, timeout: float = CONNECT_TIMEOUT
    ) -> AsyncIterator[tuple[MembershipStub, PeerId | None]]:
        """To make calls with, and who answers them, as TLS says. A channel on which a call failed for want of an
        answer is not used again. Raises PeerGone or Refused when TLS shows that it must not be called."""
        line = await self._line(address, timeout)
        if line.broken:  # while several waited for it
            raise PeerGone(address, "the connection was closed")
        self._dialer.permit(line.link)
        line.calls += 1
        try:
            yield line.stub, line.link.peer
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
        for dialling in self._dialling.values():
            dialling.cancel()
        for address, line in list(self._lines.items()):
            self._forget(address, line)
            self._hang_up(line)
        if self._closing:
            await asyncio.wait(self._closing)

    async def _line(self, address: str, timeout: float) -> MembershipChannel:
        line = self._lines.get(address)
        if line is not None and self._dialer.usable(line.link):
            return line
        if line is not None:
            self._retire(address, line)
        if not self._dialer.secure:
            return self._keep(address, self._dialer.plain(address, CONNECT_TIMEOUT))
        dialling = self._dialling.get(address)
        if dialling is None:
            dialling = self._dialling[address] = asyncio.create_task(self._dial(address, timeout))
            dialling.add_done_callback(lambda done: self._dialled(address, done))
        return await asyncio.shield(dialling)

    async def _dial(self, address: str, timeout: float) -> MembershipChannel:
        return self._keep(address, await self._dialer.dial(address, timeout))

    def _dialled(self, address: str, done: asyncio.Task[MembershipChannel]) -> None:
        self._dialling.pop(address, None)
        if not done.cancelled():
            done.exception()  # whoever waited has it; nobody may have

    def _keep(self, address: str, link: Link) -> MembershipChannel:
        now = asyncio.get_running_loop().time()
        line = self._lines[address] = MembershipChannel(link, MembershipStub(link.channel), idle_since=now)
        return line

    def _retire(self, address: str, line: MembershipChannel) -> None:
        """The calls under way may end."""
        line.broken = True
        self._forget(address, line)
        if not line.calls:
            self._hang_up(line)

    def _forget(self, address: str, line: MembershipChannel) -> None:
        if self._lines.get(address) is line:
            del self._lines[address]

    def _hang_up(self, line: MembershipChannel) -> None:
        line.broken = True
        closing = asyncio.create_task(line.link.channel.close(None))
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
