"""Ends a transfer without progress, and adapts the size of messages to the link. Pure; time is passed in."""

from __future__ import annotations

QUIET = 30.0  # seconds; every transfer must make progress in each interval of this length

SMALLEST = 1 << 14  # bytes of a message on a slow link
FIRST = 1 << 16  # bytes of the first message on an unknown link
QUICK, SLOW = 0.05, 1.0  # seconds to write a message: below, the next one is larger; above, smaller


class ProgressLimit:
    """A transfer must move `slowest` bytes per second over each `quiet` seconds, or end within them."""

    def __init__(self, quiet: float, slowest: float, now: float) -> None:
        self.until = now + quiet  # when the transfer fails unless it makes progress
        self._quiet = quiet
        self._slowest = slowest
        self._enough = quiet * slowest  # bytes
        self._counted = 0  # bytes at the beginning of the interval
        self._moved = 0  # bytes so far

    def moved(self, total: int, now: float) -> float:
        """`total` bytes have moved since the transfer began. Returns `until`."""
        self._moved = total
        if total - self._counted >= self._enough:
            self._counted, self.until = total, now + self._quiet
        return self.until

    @property
    def failure(self) -> str:
        """Why the transfer is over when `until` has passed."""
        if self._moved == self._counted:
            return f"no progress for {self._quiet:g} s"
        return f"slower than {self._slowest:g} bytes per second"


class MessageSize:
    """Bytes of the next message of a stream. Progress is visible message by message, so a message should take well
    under a second; on a fast link fewer, larger ones cost less."""

    def __init__(self, most: int, rate: float | None) -> None:
        """`rate`: bytes per second, if known."""
        self._most = most
        self.bytes = min(most, FIRST if rate is None else max(SMALLEST, int(rate / 4)))

    def wrote(self, seconds: float) -> None:
        if seconds < QUICK:
            self.bytes = min(self._most, 2 * self.bytes)
        elif seconds > SLOW:
            self.bytes = max(min(self._most, SMALLEST), self.bytes // 2)
