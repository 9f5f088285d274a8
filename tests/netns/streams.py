"""One TCP connection through the fault proxy: bytes go on when they may, in order, as late as the weather says."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

CHUNK = 1 << 12  # so small that a model of the tests can stop in its middle
AHEAD = 64  # chunks read and not yet written, in one direction

Reader = asyncio.StreamReader
Writer = asyncio.StreamWriter
Leave = Callable[[bytes], Coroutine[Any, Any, float]]  # waits until bytes may go, and says how late they come


class Stream:
    """Both directions of a connection. `run` until both have ended, or `reset`."""

    def __init__(self, near: tuple[Reader, Writer], far: tuple[Reader, Writer], there: Leave, back: Leave) -> None:
        self._near, self._far = near, far
        self._ways = ((near[0], far[1], there), (far[0], near[1], back))
        self._task: asyncio.Future[Any] | None = None

    async def run(self) -> None:
        self._task = both = asyncio.gather(*(self._way(*way) for way in self._ways))
        with suppress(OSError, asyncio.CancelledError):
            await both
        for writer in (self._near[1], self._far[1]):
            writer.close()

    def reset(self) -> None:
        """Both ends get a RST."""
        for writer in (self._near[1], self._far[1]):
            abort(writer)
        if self._task:
            self._task.cancel()

    async def _way(self, reader: Reader, writer: Writer, leave: Leave) -> None:
        """Read and write apart from each other, so that a delay costs no bandwidth."""
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(AHEAD)
        writing = asyncio.create_task(self._write(queue, writer))
        try:
            loop, due = asyncio.get_running_loop(), 0.0
            while True:
                data = await reader.read(CHUNK)
                due = max(due, loop.time() + await leave(data))
                await queue.put((due, data))
                if not data:
                    break
            await writing
        finally:
            writing.cancel()

    async def _write(self, queue: asyncio.Queue[tuple[float, bytes]], writer: Writer) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due, data = await queue.get()
            if (left := due - loop.time()) > 0:
                await asyncio.sleep(left)
            if not data:
                writer.write_eof()
                return
            writer.write(data)
            await writer.drain()


def abort(writer: Writer) -> None:
    """Close with a RST instead of a FIN."""
    plug = writer.get_extra_info("socket")
    with suppress(OSError):
        plug.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
