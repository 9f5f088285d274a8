"""Detects a change of this machine's address, for a node that listens on all addresses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from pfl_node.errors import ConfigError

EVERY = 20.0  # seconds


class AddressWatch:
    """`find` returns the address that others should dial, or raises ConfigError if there is no route now."""

    def __init__(self, find: Callable[[], Awaitable[str]], moved: Callable[[str], None]) -> None:
        self._find = find
        self._moved = moved
        self._task: asyncio.Task[None] | None = None

    def start(self, address: str) -> None:
        self._task = asyncio.create_task(self._run(address), name="address watch")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self, address: str) -> None:
        while True:
            await asyncio.sleep(EVERY)
            try:
                found = await self._find()
            except ConfigError:
                continue  # the network is down
            if found != address:
                address = found
                self._moved(address)
