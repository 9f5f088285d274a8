"""Time, as the node reads it."""

from __future__ import annotations

import asyncio


def now() -> float:
    """Seconds on the node's clock: the time of the running event loop."""
    return asyncio.get_running_loop().time()
