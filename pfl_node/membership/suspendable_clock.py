"""A member's own time: it stands still while its process did not run. Knows no clock; the world's is handed in."""

from __future__ import annotations

ROUNDING = 1e-6  # own time is a difference: a wake-up at the right moment must not come a bit too early


class SuspendableClock:
    """Nobody is judged for silence that I slept through, and after a long sleep nobody is judged for a while."""

    def __init__(self, *, slack: float, pause: float) -> None:
        self.now = 0.0
        self.lenient_until = float("-inf")
        self.pauses = 0  # long sleeps so far
        self._slack = slack
        self._pause = pause
        self._lost = 0.0  # the world's time minus own time

    def start(self, now: float) -> None:
        self.now, self._lost = now, 0.0

    @property
    def lenient(self) -> bool:
        return self.now < self.lenient_until

    def outside(self, when: float) -> float:
        return when + self._lost

    def wake(self, now: float, due: float | None) -> None:
        """The world says `now`; the first timer was `due` in own time. Much later than that: I was asleep."""
        own = max(now - self._lost, self.now)
        late = own - max(due, self.now) if due is not None else 0.0
        if late > self._slack:
            self._lost += late
            own -= late
            if late > self._pause:
                self.lenient_until = own + self._pause
                self.pauses += 1
        elif due is not None and 0 < due - own < ROUNDING:
            own = due
        self.now = max(own, self.now)
