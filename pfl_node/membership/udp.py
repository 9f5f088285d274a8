"""Datagrams in and out of one socket. What is in them it does not know."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from pfl_node.membership.resolver import Resolver, SocketAddress, written

LOOKUPS_LIMIT = 64  # datagrams that wait for a name at the same time
FLUSH_TRIES = 100


class Udp(asyncio.DatagramProtocol):
    """`bind`, `open`, `send`, `close`; what comes is handed to `receive` with the HOST:PORT it came from."""

    def __init__(self, receive: Callable[[bytes, str], None], clock: Callable[[], float]) -> None:
        self._receive = receive
        self._clock = clock
        self._socket: socket.socket | None = None
        self._transport: asyncio.DatagramTransport | None = None
        self._resolver = Resolver(socket.AF_INET, clock)
        self._lookups: set[asyncio.Task[None]] = set()

    @property
    def bound(self) -> bool:
        return self._socket is not None

    def bind(self, host: str, port: int) -> None:
        """Raises OSError when the number is taken."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        taken = socket.socket(family, socket.SOCK_DGRAM)
        try:
            taken.setblocking(False)
            if family == socket.AF_INET6:
                taken.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            taken.bind((host, port))
        except OSError:
            taken.close()
            raise
        if self._socket is not None:
            self._socket.close()
        self._socket = taken
        self._resolver = Resolver(family, self._clock)

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(lambda: self, sock=self._socket)

    def send(self, data: bytes, address: str) -> None:
        place = self._resolver.known(address)
        if place is not None:
            self._put(data, place)
        elif len(self._lookups) < LOOKUPS_LIMIT:
            lookup = asyncio.create_task(self._send_later(data, address))
            self._lookups.add(lookup)
            lookup.add_done_callback(self._lookups.discard)

    def invalidate(self, address: str) -> None:
        self._resolver.invalidate(address)

    async def flush(self) -> None:
        """Until everything is in the hands of the kernel."""
        if self._lookups:
            await asyncio.wait(self._lookups, timeout=1.0)
        transport: Any = self._transport  # its type does not tell of the buffer
        for _ in range(FLUSH_TRIES):
            if transport is None or not transport.get_write_buffer_size():
                return
            await asyncio.sleep(0.005)

    def close(self) -> None:
        for lookup in self._lookups:
            lookup.cancel()
        if self._transport is not None:
            self._transport.abort()
        elif self._socket is not None:
            self._socket.close()
        self._transport = self._socket = None

    def datagram_received(self, data: bytes, addr: SocketAddress) -> None:
        self._receive(data, written(addr))

    def error_received(self, exc: Exception) -> None:
        """The kernel tells that a datagram did not arrive; silence will show it, too."""

    async def _send_later(self, data: bytes, address: str) -> None:
        place = await self._resolver.find(address)
        if place is not None:
            self._put(data, place)

    def _put(self, data: bytes, place: SocketAddress) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.sendto(data, place)
