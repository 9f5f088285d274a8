"""Joins two connections: what arrives on one is sent on the other, until either ends."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress

from pfl_node.wire.pump import Pump


class Splice:
    """`on_bytes` returns the seconds for which nothing more is to be read: 0 for none."""

    def __init__(
        self,
        one: socket.socket,
        other: socket.socket,
        *,
        on_bytes: Callable[[int], float] = lambda size: 0.0,  # noqa: ARG005
        on_end: Callable[[Splice], None] = lambda splice: None,  # noqa: ARG005
    ) -> None:
        self._sockets = (one, other)
        self._on_bytes = on_bytes
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._resuming: asyncio.TimerHandle | None = None
        self._closed = False
        self._pumps = tuple(
            Pump(source, target, transform=None, on_bytes=self._moved, on_end=self.close)
            for source, target in ((one, other), (other, one))
        )

    def start(self) -> None:
        for pump in self._pumps:
            pump.start()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._resuming is not None:
            self._resuming.cancel()
        for pump in self._pumps:
            pump.close()
        for end in self._sockets:
            with suppress(OSError):
                end.close()
        self._on_end(self)

    def _moved(self, size: int) -> None:
        wait = self._on_bytes(size)
        if wait > 0 and self._resuming is None and not self._closed:
            for pump in self._pumps:
                pump.pause()
            self._resuming = self._loop.call_later(wait, self._resume)

    def _resume(self) -> None:
        self._resuming = None
        for pump in self._pumps:
            pump.resume()
