"""Remote addresses of the connections to a port, from the kernel's table: gRPC reports only accepted ones.

Only the beginning of the table is read, so that a read costs the same however many connections there are. The log
then does not name the addresses further down.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

from pfl_node.address import join_address

ESTABLISHED = "01"
TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
PAUSE = 0.05  # seconds between two reads, so that a flood of connections does not cause a flood of reads
READ_LIMIT = 32 << 10  # bytes of a table, about 200 connections
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
            recent = {address: since for address, since in self._open.items() if since >= now - SHORT}
            self._open = recent | {address: self._open.get(address, now) for address in self._read()}

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
        port = f":{self.port:04X}"
        for table in TABLES:
            try:
                with table.open() as file:
                    rows = file.read(READ_LIMIT).rpartition("\n")[0].splitlines()[1:]
            except OSError:
                continue
            for row in rows:
                _, local, remote, state, *_ = row.split()
                if state == ESTABLISHED and local.endswith(port):
                    yield _address(remote)


def _address(entry: str) -> str:
    """The kernel prints 32-bit words in the machine's byte order."""
    digits, _, port = entry.partition(":")
    raw = b"".join(int(digits[i : i + 8], 16).to_bytes(4, "little") for i in range(0, len(digits), 8))
    host = socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw)
    return join_address(host.removeprefix("::ffff:"), int(port, 16))
