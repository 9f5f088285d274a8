"""Remote addresses of the connections to a port, from the kernel's table: gRPC reports only accepted ones."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

from pfl_node.address import join_address

ESTABLISHED = "01"
TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
PAUSE = 0.05  # seconds between two reads, so that a flood of connections does not cause a flood of reads
SHORT = 3.0  # seconds that a refused connection lasts at most


class ConnectionTable:
    """Call `look` when a connection is opened, and `closed` when one was refused."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._open: dict[str, float] = {}  # by address: since when
        self._next_look = self._next_closed = 0.0

    def look(self) -> None:
        now = monotonic()
        if now >= self._next_look:
            self._next_look = now + PAUSE
            self._open = {address: self._open.get(address, now) for address in {*self._open, *self._read()}}

    def closed(self) -> list[str]:
        """Addresses that connected recently and are gone: the refused one, and perhaps others."""
        now = monotonic()
        if now < self._next_closed:
            return []
        self._next_closed = now + PAUSE
        still, before = set(self._read()), self._open
        self._open = {address: since for address, since in before.items() if address in still}
        return sorted(a for a, since in before.items() if a not in still and since >= now - SHORT)

    def _read(self) -> Iterator[str]:
        for table in TABLES:
            try:
                rows = table.read_text().splitlines()[1:]
            except OSError:
                continue
            for row in rows:
                _, local, remote, state, *_ = row.split()
                if state == ESTABLISHED and int(local.rpartition(":")[2], 16) == self.port:
                    yield _address(remote)


def _address(entry: str) -> str:
    """The kernel prints 32-bit words in the machine's byte order."""
    digits, _, port = entry.partition(":")
    raw = b"".join(int(digits[i : i + 8], 16).to_bytes(4, "little") for i in range(0, len(digits), 8))
    host = socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw)
    return join_address(host.removeprefix("::ffff:"), int(port, 16))
