"""A connection to the page's port. One that neither sends a request nor reads its answer is closed, so that new
ones are accepted."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

CONNECTIONS = 128  # concurrent ones
CHECK_INTERVAL = 5.0  # seconds; a connection that is idle at two checks is closed


class Connection(H11Protocol):
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
