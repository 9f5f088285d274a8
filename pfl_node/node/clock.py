"""The clock of a node."""

from __future__ import annotations

import asyncio


def now() -> float:
    """The time of the running event loop, in seconds."""
    return asyncio.get_running_loop().time()
