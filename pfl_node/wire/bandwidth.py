"""Estimates the bandwidth to a peer and derives call deadlines from it. Pure."""

from __future__ import annotations

NEW = 0.3  # weight of the latest transfer
ENOUGH = 1 << 16  # bytes; smaller transfers measure latency rather than bandwidth
MARGIN = 2.0  # by which a link may become slower
LOWEST = 1 / 16  # of the initial guess


class Bandwidth:
    """Bytes per second: an initial guess, then a moving average."""

    def __init__(self, guess: float) -> None:
        self.rate = guess
        self._lowest = guess * LOWEST
        self._measured = False

    def timeout(self, base: float, nbytes: int) -> float:
        """Seconds for a call that transfers so many bytes."""
        return base + MARGIN * nbytes / self.rate

    def moved(self, nbytes: int, seconds: float) -> None:
        if nbytes < ENOUGH or seconds <= 0:
            return
        rate = nbytes / seconds
        self.rate = max(self._lowest, self.rate + NEW * (rate - self.rate) if self._measured else rate)
        self._measured = True

    def too_slow(self) -> None:
        """A deadline was exceeded: extend the next one."""
        self.rate = max(self._lowest, self.rate / 2)
