"""Dials peers in the background that could not be dialled, so that no round waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from pfl_node.errors import PeerError
from pfl_node.types import PeerId
from pfl_node.wire.dials import Dials

AT_ONCE = 16  # concurrent dials
POLL_INTERVAL = 5.0  # seconds between two checks of the peers, if there is no news


class Redialer:
    """`wanted` returns the addresses of the peers to dial, `dial` opens a connection or raises PeerError."""

    def __init__(
        self,
        dials: Dials,
        wanted: Callable[[], Mapping[PeerId, str]],
        dial: Callable[[PeerId, str], Awaitable[None]],
    ) -> None:
        self._dials = dials
        self._wanted = wanted
        self._dial = dial
        self._news = asyncio.Event()
        self._dialling: dict[PeerId, asyncio.Task[None]] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="redialer")

    def look(self) -> None:
        """A dial failed, or there is news of a peer."""
        self._news.set()

    async def close(self) -> None:
        tasks = [task for task in (self._task, *self._dialling.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            self._news.clear()
            wait = self._start_due()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._news.wait()

    def _start_due(self) -> float:
        """Start the dials that are due; returns the seconds until the next one is."""
        now, next_due = asyncio.get_running_loop().time(), POLL_INTERVAL
        for peer, address in self._wanted().items():
            wait = self._dials.wait(peer, address, now)
            if peer in self._dialling or len(self._dialling) >= AT_ONCE:
                continue
            if wait:
                next_due = min(next_due, wait)
                continue
            self._dialling[peer] = asyncio.create_task(self._one(peer, address))
        return next_due

    async def _one(self, peer: PeerId, address: str) -> None:
        try:
            await self._dial(peer, address)
        except PeerError:
            pass  # the pool has recorded the failure
        finally:
            self._dialling.pop(peer, None)
            self._news.set()
