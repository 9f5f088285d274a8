"""Something changed: wake whoever waits for it. One event loop, no polling."""

from __future__ import annotations

import asyncio


class Notifier:
    """Rings for all that wait now; those who come later wait for the next ring."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def ring(self) -> None:
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self, seconds: float | None) -> bool:
        """True: it rang; False: the time was over first."""
        try:
            async with asyncio.timeout(seconds):
                await self._event.wait()
        except TimeoutError:
            return False
        return True
