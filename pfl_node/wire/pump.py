"""Moves bytes from one socket to another as they arrive. Reads nothing while the other side does not accept
more."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable

SIZE = 1 << 20  # bytes that are read at once
_BUFFER = bytearray(SIZE)  # shared by all pumps: its bytes are sent or copied before the next read
_VIEW = memoryview(_BUFFER)

Transform = Callable[[bytes], bytes]


class Pump:
    """`transform` encrypts or decrypts; None: bytes are passed on unchanged. `on_bytes` is called with the size of
    each read, `on_end` if the source has ended or one of the sockets fails."""

    def __init__(
        self,
        source: socket.socket,
        target: socket.socket,
        *,
        transform: Transform | None,
        on_bytes: Callable[[int], None],
        on_end: Callable[[], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._source = source
        self._target = target
        self._transform = transform
        self._on_bytes = on_bytes
        self._on_end = on_end
        self._unsent = memoryview(b"")
        self._reading = self._paused = self._closed = False

    def start(self, already: bytes = b"") -> None:
        """`already`: transformed bytes to send first."""
        self._send(memoryview(already))

    def pause(self) -> None:
        """Read nothing until `resume`: TCP then slows the sender down."""
        self._paused = True
        self._read(False)

    def resume(self) -> None:
        self._paused = False
        self._read(not self._unsent)

    def close(self) -> None:
        """Call this before the sockets are closed."""
        if not self._closed:
            self._read(False)
            self._closed = True
            self._loop.remove_writer(self._target)

    def _readable(self) -> None:
        try:
            size = self._source.recv_into(_BUFFER)
            if not size:
                self._on_end()
                return
            self._on_bytes(size)
            part = _VIEW[:size]
            self._send(memoryview(self._transform(bytes(part))) if self._transform else part)
        except (BlockingIOError, InterruptedError):
            return
        except (OSError, ssl.SSLError, EOFError):
            self._on_end()

    def _send(self, data: memoryview) -> None:
        sent = 0
        try:
            while sent < len(data):
                sent += self._target.send(data[sent:])
        except (BlockingIOError, InterruptedError):
            self._unsent = memoryview(bytes(data[sent:]))
            self._read(False)
            self._loop.add_writer(self._target, self._writable)
            return
        self._read(not self._paused)

    def _writable(self) -> None:
        try:
            self._unsent = self._unsent[self._target.send(self._unsent) :]
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._on_end()
            return
        if not self._unsent:
            self._loop.remove_writer(self._target)
            self._read(not self._paused)

    def _read(self, wanted: bool) -> None:
        if wanted and not self._reading and not self._closed:
            self._loop.add_reader(self._source, self._readable)
        elif self._reading and not wanted:
            self._loop.remove_reader(self._source)
        self._reading = wanted and not self._closed
