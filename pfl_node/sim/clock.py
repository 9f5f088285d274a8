"""Virtual time: what is due happens in order of time, and at equal times in the order it was asked for."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from math import isfinite
from typing import Protocol

Action = Callable[[], None]


class Timer(Protocol):
    """A clock as one sees it who looks at it and sets alarms: the world's, or a node's own."""

    @property
    def now(self) -> float: ...
    def at(self, time: float, action: Action) -> None: ...
    def after(self, seconds: float, action: Action) -> None: ...
    def when(self, time: float) -> float:
        """At what time of the world it shows this time."""
        ...


class Clock:
    """A heap of (time, sequence, action). Time moves only when `step` takes the next one."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now
        self._sequence = 0
        self._due: list[tuple[float, int, Action]] = []

    def at(self, time: float, action: Action) -> None:
        """What is asked for the past happens now; what is asked for the end of time never happens."""
        if isfinite(time):
            self._sequence += 1
            heapq.heappush(self._due, (max(time, self.now), self._sequence, action))

    def after(self, seconds: float, action: Action) -> None:
        self.at(self.now + seconds, action)

    def when(self, time: float) -> float:
        return time

    def step(self) -> bool:
        """Do the next thing; False: nothing is left to do."""
        if not self._due:
            return False
        self.now, _, action = heapq.heappop(self._due)
        action()
        return True

    def __len__(self) -> int:
        return len(self._due)
