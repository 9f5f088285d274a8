"""A clock that stops while the process is suspended, given readings of a real clock."""

from __future__ import annotations

import time

ROUNDING = 1e-6  # own time is a difference of floats: a timer must not fire slightly early


def uptime() -> float:
    """A clock that includes the time the machine was suspended, so that a suspension is noticed."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class SuspendableClock:
    """Members are not suspected because of their silence during a suspension and, after a long one, not for
    another `pause` seconds (`lenient`)."""

    def __init__(self, *, slack: float, pause: float) -> None:
        self.now = 0.0
        self.lenient_until = float("-inf")
        self.pauses = 0  # suspensions longer than `pause`
        self._slack = slack
        self._pause = pause
        self._lost = 0.0  # real time minus own time

    def start(self, now: float) -> None:
        self.now, self._lost = now, 0.0

    @property
    def lenient(self) -> bool:
        return self.now < self.lenient_until

    def to_real(self, when: float) -> float:
        return when + self._lost

    def wake(self, now: float, due: float | None) -> bool:
        """Advance to the real time `now`. If that is much later than the first timer, which was `due` in own time,
        the process was suspended, or the machine is too busy to run it; True in that case."""
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
        return late > self._slack
