"""From where connections came to a port, as the kernel's table tells; gRPC says it only of those it let in."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

ESTABLISHED = "01"
TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
PAUSE = 0.05  # seconds between two looks: a flood of connections must not become one of looks
SHORT = 3.0  # seconds that somebody who was turned away was here at most


class ConnectionTable:
    """`look` when a connection comes, `left` when one was turned away."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._here: dict[str, float] = {}  # since when
        self._next_look = self._next_left = 0.0

    def look(self) -> None:
        now = monotonic()
        if now >= self._next_look:
            self._next_look = now + PAUSE
            self._here = {place: self._here.get(place, now) for place in {*self._here, *self._now()}}

    def left(self) -> list[str]:
        """Who came a moment ago and is no more: the one who was turned away, and perhaps another."""
        now = monotonic()
        if now < self._next_left:
            return []
        self._next_left = now + PAUSE
        still, here = set(self._now()), self._here
        self._here = {place: since for place, since in here.items() if place in still}
        return sorted(place for place, since in here.items() if place not in still and since >= now - SHORT)

    def _now(self) -> Iterator[str]:
        for table in TABLES:
            try:
                rows = table.read_text().splitlines()[1:]
            except OSError:
                continue
            for row in rows:
                _, local, remote, state, *_ = row.split()
                if state == ESTABLISHED and int(local.rpartition(":")[2], 16) == self.port:
                    yield _written(remote)


def _written(place: str) -> str:
    """The kernel writes words of 32 bits in the order of this machine."""
    digits, _, port = place.partition(":")
    words = [int(digits[i : i + 8], 16).to_bytes(4, "little") for i in range(0, len(digits), 8)]
    raw = b"".join(words)
    if len(raw) == 4:
        return f"{socket.inet_ntop(socket.AF_INET, raw)}:{int(port, 16)}"
    text = socket.inet_ntop(socket.AF_INET6, raw).removeprefix("::ffff:")
    return f"[{text}]:{int(port, 16)}" if ":" in text else f"{text}:{int(port, 16)}"
