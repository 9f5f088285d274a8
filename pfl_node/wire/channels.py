"""A pool of gRPC channels: one per peer or address, shared by concurrent calls, replaced when it fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pfl_node.address import parse_relayed
from pfl_node.errors import PeerError, PeerGone, Reason, Refused
from pfl_node.types import PeerId
from pfl_node.wire.dialer import Dialer, Link
from pfl_node.wire.dials import Dials

CONNECT_TIMEOUT = 5.0  # seconds
WRONG_PEER_REASONS = (Reason.IMPOSTOR, Reason.NO_TLS)  # something else answered at the peer's address

S = TypeVar("S")


@dataclass(slots=True, eq=False)
class PooledChannel(Generic[S]):
    key: str
    address: str
    link: Link
    stub: S
    idle_since: float
    calls: int = 0  # calls in progress
    retired: bool = False  # closed after its last call


class ChannelPool(Generic[S]):
    """Channels by peer id where it is known, else by address. With `idle`, unused ones are closed after that many
    seconds. With `dials`, a channel is connected before its first call, and failed dials to a peer back off."""

    def __init__(
        self,
        dialer: Dialer,
        stub: Callable[[Any], S],
        *,
        connect_timeout: float = CONNECT_TIMEOUT,
        idle: float | None = None,
        dials: Dials | None = None,
    ) -> None:
        self._dialer = dialer
        self._dials = dials
        self._stub = stub
        self._connect_timeout = connect_timeout
        self._idle = idle
        self._channels: dict[str, PooledChannel[S]] = {}
        self._dialling: dict[tuple[str, str], asyncio.Task[PooledChannel[S]]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._reaper: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._channels)

    @asynccontextmanager
    async def channel(
        self, address: str, *, peer: PeerId | None = None, timeout: float | None = None
    ) -> AsyncIterator[PooledChannel[S]]:
        """A channel for one call. Raises PeerGone, or Refused if the peer's certificate is not accepted."""
        channel = await self._connected(peer, address, timeout)
        if channel.retired:  # retired while several callers waited for the connection
            raise PeerGone(channel.key, "the connection was closed")
        try:
            self._dialer.permit(channel.link)
        except Refused as refused:
            raise Refused(refused.reason, refused.text, channel.key) from refused
        channel.calls += 1
        try:
            yield channel
        finally:
            channel.calls -= 1
            channel.idle_since = asyncio.get_running_loop().time()
            if channel.retired and not channel.calls:
                self._close(channel)
            self._schedule_reaper()

    def forget(self, key: str) -> None:
        """Close the channel at once; calls in progress end with PeerGone."""
        channel = self._channels.pop(key, None)
        if channel is not None:
            self._close(channel)

    def retire(self, channel: PooledChannel[S]) -> None:
        """Use the channel for no new call. Calls in progress may finish: closing a channel cancels them."""
        channel.retired = True
        if self._channels.get(channel.key) is channel:
            del self._channels[channel.key]
        if not channel.calls:
            self._close(channel)

    async def close(self) -> None:
        if self._reaper is not None:
            self._reaper.cancel()
            self._reaper = None
        for dialling in self._dialling.values():
            dialling.cancel()
        for key in list(self._channels):
            self.forget(key)
        await asyncio.gather(*self._closing)

    async def _connected(self, peer: PeerId | None, address: str, timeout: float | None) -> PooledChannel[S]:
        key = peer or address
        channel = self._channels.get(key)
        if channel is not None and channel.address != address:
            if parse_relayed(address):  # its relays changed; calls through the old ones may finish
                self.retire(channel)
            else:
                self.forget(key)
        elif channel is not None and self._usable(channel.link):
            return channel
        elif channel is not None:
            self.retire(channel)
        if peer is not None and self._dials is not None:
            self._check_backoff(self._dials, peer, address)
        return await self._dialled_channel(peer, address, timeout)

    async def connect(self, peer: PeerId, address: str) -> None:
        """Connect to a peer without regard to the back-off. Raises PeerGone or Refused."""
        channel = self._channels.get(peer)
        if channel is None or channel.address != address or not self._usable(channel.link):
            await self._dialled_channel(peer, address, None)

    def abandon(self, peer: PeerId) -> None:
        """Stop dialling a peer; a connection that exists stays."""
        for (key, _), dialling in list(self._dialling.items()):
            if key == peer:
                dialling.cancel()

    def _usable(self, link: Link) -> bool:
        return self._dialer.usable(link) and (self._dials is None or self._dialer.connected(link))

    def _check_backoff(self, dials: Dials, peer: PeerId, address: str) -> None:
        record, now = dials.of(peer, address), asyncio.get_running_loop().time()
        if record is not None and record.next > now:
            text = f"{record.reason}; dialled {record.failures} times, again in {record.next - now:.1f} s"
            raise PeerGone(peer, text)

    async def _dialled_channel(self, peer: PeerId | None, address: str, timeout: float | None) -> PooledChannel[S]:
        key = peer or address
        dialling = self._dialling.get((key, address))
        if dialling is None:
            dialling = self._dialling[key, address] = asyncio.create_task(self._dial(peer, address))
            dialling.add_done_callback(lambda done: self._dialled((key, address), done))
        try:
            async with asyncio.timeout(timeout):
                return await asyncio.shield(dialling)
        except TimeoutError as error:
            raise PeerGone(key, f"no connection within {timeout:g} s") from error

    async def _dial(self, peer: PeerId | None, address: str) -> PooledChannel[S]:
        link = await self._link(peer, address)
        now = asyncio.get_running_loop().time()
        channel = PooledChannel(peer or address, address, link, self._stub(link.channel), now)
        self._channels[channel.key] = channel
        return channel

    async def _link(self, peer: PeerId | None, address: str) -> Link:
        dials, clock = self._dials, asyncio.get_running_loop().time
        if dials is None or peer is None:
            return await self._dialer.dial(address, self._connect_timeout, expect=peer)
        try:
            link = await self._dialer.dial(address, self._connect_timeout, expect=peer)
            await self._dialer.connect(link, peer, self._connect_timeout)
        except PeerError as error:
            if not isinstance(error, Refused) or error.reason in WRONG_PEER_REASONS:
                dials.failed(peer, address, error.text, clock())
            raise
        dials.succeeded(peer, address, clock())
        return link

    def _dialled(self, key: tuple[str, str], done: asyncio.Task[PooledChannel[S]]) -> None:
        self._dialling.pop(key, None)
        if not done.cancelled():
            done.exception()  # retrieve it: every caller may have given up waiting

    def _close(self, channel: PooledChannel[S]) -> None:
        channel.retired = True
        task = asyncio.get_running_loop().create_task(channel.link.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _schedule_reaper(self) -> None:
        if self._idle is not None and self._reaper is None and self._channels:
            self._reaper = asyncio.get_running_loop().call_later(self._idle, self._reap)

    def _reap(self) -> None:
        self._reaper = None
        limit = asyncio.get_running_loop().time() - (self._idle or 0.0)
        for channel in list(self._channels.values()):
            if not channel.calls and channel.idle_since <= limit:
                self.retire(channel)
        self._schedule_reaper()
