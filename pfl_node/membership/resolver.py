"""Where a HOST:PORT is, for a socket of one family. Names are looked up off the loop and kept for a while."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from ipaddress import ip_address
from typing import Any

from pfl_node.address import parse_address
from pfl_node.errors import ConfigError

SocketAddress = tuple[Any, ...]
TTL = 30.0  # seconds
ENTRIES = 8192


class Resolver:
    def __init__(self, family: socket.AddressFamily, clock: Callable[[], float]) -> None:
        self._family = family
        self._clock = clock
        self._known: dict[str, tuple[SocketAddress, float]] = {}

    def known(self, address: str) -> SocketAddress | None:
        """Without waiting: a number, or a name that was looked up not long ago."""
        entry = self._known.get(address)
        if entry is not None and self._clock() < entry[1]:
            return entry[0]
        numeric = self._numeric(address)
        if numeric is not None:
            self._remember(address, numeric, float("inf"))
        return numeric

    async def find(self, address: str) -> SocketAddress | None:
        """None when there is no such host."""
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
        """Look it up again: its host does not answer, and may have moved."""
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


def written(source: SocketAddress) -> str:
    """HOST:PORT of where a datagram came from."""
    host, port = str(source[0]), source[1]
    if host.startswith("::ffff:"):
        host = host.removeprefix("::ffff:")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
