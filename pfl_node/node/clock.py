"""The clocks of a node: one for durations, one for the time of day."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo


def now() -> float:
    """The time of the running event loop, in seconds."""
    return asyncio.get_running_loop().time()


@dataclass(frozen=True, slots=True)
class WallClock:
    """The time of day at the node's site. A simulation begins at midnight UTC on the first of January 1970."""

    time: Callable[[], float] = now  # seconds since 1970
    zone: tzinfo | None = UTC  # None: the time zone of the system

    def date(self, time: float) -> datetime:
        return datetime.fromtimestamp(time, self.zone)
