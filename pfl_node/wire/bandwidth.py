"""How fast a link is, as far as we know, and so how long a call may take. Pure."""

from __future__ import annotations

NEW = 0.3  # the weight of the latest transfer
ENOUGH = 1 << 16  # bytes below which a transfer tells the latency and not the bandwidth
MARGIN = 2.0  # a link may be so many times slower than it was
LOWEST = 1 / 16  # of the first guess


class Bandwidth:
    """Bytes per second to one peer: a guess at first, then a moving average."""

    def __init__(self, guess: float) -> None:
        self.rate = guess
        self._lowest = guess * LOWEST
        self._measured = False

    def timeout(self, base: float, nbytes: int) -> float:
        """Seconds for a call that moves so many bytes."""
        return base + MARGIN * nbytes / self.rate

    def moved(self, nbytes: int, seconds: float) -> None:
        if nbytes < ENOUGH or seconds <= 0:
            return
        rate = nbytes / seconds
        self.rate = max(self._lowest, self.rate + NEW * (rate - self.rate) if self._measured else rate)
        self._measured = True

    def too_slow(self) -> None:
        """A deadline passed: the next one is later."""
        self.rate = max(self._lowest, self.rate / 2)
