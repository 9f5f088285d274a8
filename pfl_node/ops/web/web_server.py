"""Serves the page of a node on its own port, in the node's event loop."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from pfl_node.address import is_wildcard, join_address, parse_address
from pfl_node.errors import Unavailable
from pfl_node.ops.web.app import application

if TYPE_CHECKING:
    from pfl_node.ops.observed_node import ObservedNode

GRACE = 2  # seconds for pending responses when the node ends
CONNECTIONS = 128  # concurrent connections
CHECK_INTERVAL = 5.0  # seconds; a connection that is idle at two checks is closed


class Connection(H11Protocol):
    """A connection that neither sends a request nor reads its answer is closed, so that new ones are accepted."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._opened = monotonic()
        self._was_idle = False
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._timer = self.loop.call_later(CHECK_INTERVAL, self._check)
        if len(self.connections) > CONNECTIONS:
            idle: list[Connection] = [one for one in self.connections if isinstance(one, Connection) and one.idle]
            min(idle, key=lambda one: one._opened).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer:
            self._timer.cancel()
        super().connection_lost(exc)

    @property
    def idle(self) -> bool:
        """The client has not sent a whole request, or does not read the answer."""
        cycle = self.cycle
        return cycle is None or cycle.response_complete or cycle.more_body or self.flow.write_paused

    def _check(self) -> None:
        if self.idle and self._was_idle:
            self.transport.abort()
            return
        self._was_idle = self.idle
        self._timer = self.loop.call_later(CHECK_INTERVAL, self._check)


class _Server(uvicorn.Server):
    """Leaves signals to the daemon, and wakes up once instead of ten times a second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.stopped = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        while not await self.on_tick(0):
            try:
                async with asyncio.timeout(1.0):
                    await self.stopped.wait()
            except TimeoutError:
                continue

    def stop(self) -> None:
        self.should_exit = True
        self.stopped.set()


class Page:
    def __init__(self, node: ObservedNode) -> None:
        assert node.settings.http.listen is not None
        self.host, self.port = parse_address(node.settings.http.listen, what="http", any_port=True)
        self._node = node
        self._task: asyncio.Task[None] | None = None
        self._server: _Server | None = None

    @property
    def url(self) -> str:
        host = "localhost" if is_wildcard(self.host) else self.host
        return f"http://{join_address(host, self.port)}/"

    async def open(self) -> None:
        taken = _bind(self.host, self.port)
        self.port = taken.getsockname()[1]
        config = uvicorn.Config(
            application(self._node),
            http=Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=GRACE,
        )
        self._server = _Server(config)
        self._task = asyncio.create_task(self._server.serve([taken]), name="page")

    async def close(self) -> None:
        if self._task and self._server:
            self._server.stop()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None


def _bind(host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = min(found, key=lambda info: info[0] != socket.AF_INET)
        taken = socket.socket(family, kind, protocol)
    except OSError as error:
        raise Unavailable(f"cannot serve the page on {host}: not an address of this machine ({error})") from error
    try:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(address)
        taken.listen(CONNECTIONS)
        taken.setblocking(False)
    except OSError as error:
        taken.close()
        where = join_address(host, port)
        if error.errno == errno.EADDRINUSE:
            raise Unavailable(
                f"cannot serve the page on {where}: port {port} is in use; choose another"
            ) from error
        raise Unavailable(f"cannot serve the page on {where}: {error.strerror}") from error
    return taken
