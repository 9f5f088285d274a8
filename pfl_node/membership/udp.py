"""A UDP socket for datagrams to HOST:PORT, with cached name resolution."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from ipaddress import ip_address
from typing import Any

from pfl_node.address import join_address, parse_address
from pfl_node.errors import ConfigError

SocketAddress = tuple[Any, ...]
TTL = 30.0  # seconds for which a name is cached
ENTRIES = 8192
LOOKUPS_LIMIT = 64  # datagrams waiting for a lookup
FLUSH_TRIES = 100


class Resolver:
    """Socket addresses of one family; names are looked up in the background."""

    def __init__(self, family: socket.AddressFamily, clock: Callable[[], float]) -> None:
        self._family = family
        self._clock = clock
        self._known: dict[str, tuple[SocketAddress, float]] = {}

    def known(self, address: str) -> SocketAddress | None:
        """The address of a numeric host or a cached name."""
        entry = self._known.get(address)
        if entry is not None and self._clock() < entry[1]:
            return entry[0]
        numeric = self._numeric(address)
        if numeric is not None:
            self._remember(address, numeric, float("inf"))
        return numeric

    async def find(self, address: str) -> SocketAddress | None:
        """None if the host does not exist."""
        found = self.known(address)
        if found is not None:
            return found
        try:
            host, port = parse_address(address)
            infos = await asyncio.get_running_loop().getaddrinfo(
                host,
                port,
                family=self._family,
                type=socket.SOCK_DGRAM,
                flags=socket.AI_V4MAPPED if self._family == socket.AF_INET6 else 0,
            )
        except (ConfigError, OSError):
            return None
        self._remember(address, infos[0][4], self._clock() + TTL)
        return infos[0][4]

    def invalidate(self, address: str) -> None:
        """Drop a cached name: its host does not answer and may have moved."""
        entry = self._known.get(address)
        if entry is not None and entry[1] != float("inf"):
            del self._known[address]

    def _remember(self, address: str, found: SocketAddress, until: float) -> None:
        if len(self._known) >= ENTRIES:
            self._known.clear()
        self._known[address] = (found, until)

    def _numeric(self, address: str) -> SocketAddress | None:
        try:
            host, port = parse_address(address)
            ip = ip_address(host)
        except (ConfigError, ValueError):
            return None
        if self._family == socket.AF_INET6:
            return (str(ip) if ip.version == 6 else f"::ffff:{ip}", port, 0, 0)
        return (host, port) if ip.version == 4 else None


class Udp(asyncio.DatagramProtocol):
    """`receive` is called with each datagram and the HOST:PORT of its sender."""

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
        """Raises OSError if the port is in use."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        bound = socket.socket(family, socket.SOCK_DGRAM)
        try:
            bound.setblocking(False)
            if family == socket.AF_INET6:
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            bound.bind((host, port))
        except OSError:
            bound.close()
            raise
        if self._socket is not None:
            self._socket.close()
        self._socket = bound
        self._resolver = Resolver(family, self._clock)

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(lambda: self, sock=self._socket)

    def send(self, data: bytes, address: str) -> None:
        target = self._resolver.known(address)
        if target is not None:
            self._send(data, target)
        elif len(self._lookups) < LOOKUPS_LIMIT:
            lookup = asyncio.create_task(self._send_later(data, address))
            self._lookups.add(lookup)
            lookup.add_done_callback(self._lookups.discard)

    def invalidate(self, address: str) -> None:
        self._resolver.invalidate(address)

    async def flush(self) -> None:
        """Wait until the kernel has all datagrams."""
        if self._lookups:
            await asyncio.wait(self._lookups, timeout=1.0)
        transport: Any = self._transport  # its type lacks get_write_buffer_size
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
        self._receive(data, join_address(str(addr[0]).removeprefix("::ffff:"), addr[1]))

    def error_received(self, exc: Exception) -> None:
        """Ignored: SWIM detects unreachable members by its own timeouts."""

    async def _send_later(self, data: bytes, address: str) -> None:
        target = await self._resolver.find(address)
        if target is not None:
            self._send(data, target)

    def _send(self, data: bytes, target: SocketAddress) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.sendto(data, target)
