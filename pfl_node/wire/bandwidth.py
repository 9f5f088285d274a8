"""Estimates the bandwidth to each peer and derives call deadlines from it. Pure."""

from __future__ import annotations

from pfl_node.types import PeerId

NEW = 0.3  # weight of the latest transfer
ENOUGH = 1 << 16  # bytes; smaller transfers measure latency rather than bandwidth
MARGIN = 2.0  # factor by which a link may become slower
LOWEST = 1 / 16  # smallest estimate, as a fraction of the initial guess
BRIEF = 1.0  # seconds; a transfer that breaks off earlier is not measured
PEERS = 4096  # peers that are remembered; those unused for longest are dropped first


class Bandwidth:
    """Bytes per second: an initial guess, then a moving average."""

    def __init__(self, guess: float, lowest: float | None = None) -> None:
        self.rate = guess
        self.measured = False
        self._lowest = guess * LOWEST if lowest is None else lowest
        self._slow = False

    @property
    def known(self) -> float | None:
        """The measured rate."""
        return self.rate if self.measured else None

    def timeout(self, base: float, nbytes: int) -> float:
        """The timeout, in seconds, of a call that transfers this many bytes."""
        return base + MARGIN * nbytes / self.rate

    def slow(self, nbytes: int, seconds: float) -> bool:
        """Whether this many bytes take longer than `seconds`. With hysteresis: once True, until they take less
        than half of it."""
        if self.measured:
            self._slow = nbytes / self.rate > (seconds / 2 if self._slow else seconds)
        return self._slow

    def moved(self, nbytes: int, seconds: float) -> None:
        if nbytes < ENOUGH or seconds <= 0:
            return
        self._learn(nbytes / seconds)

    def broke(self, nbytes: int, seconds: float) -> None:
        """A transfer broke off after this many bytes. Some may still be in buffers, so this is an upper bound of
        the bandwidth."""
        if seconds < BRIEF or nbytes < ENOUGH:
            return
        rate = nbytes / seconds
        if not self.measured or rate < self.rate:
            self._learn(rate)

    def too_slow(self) -> None:
        """A deadline was exceeded: extend the next one."""
        self.rate = max(self._lowest, self.rate / 2)

    def _learn(self, rate: float) -> None:
        self.rate = max(self._lowest, self.rate + NEW * (rate - self.rate) if self.measured else rate)
        self.measured = True


class Bandwidths:
    """The bandwidth from this node to each peer."""

    def __init__(self, guess: float, lowest: float) -> None:
        self._guess = guess
        self._lowest = lowest
        self._peers: dict[PeerId, Bandwidth] = {}

    def measured(self) -> dict[PeerId, int]:
        """Bytes per second to each peer that was sent enough."""
        return {peer: round(line.rate) for peer, line in self._peers.items() if line.measured}

    def of(self, peer: PeerId) -> Bandwidth:
        known = self._peers.pop(peer) if peer in self._peers else Bandwidth(self._guess, self._lowest)
        self._peers[peer] = known
        if len(self._peers) > PEERS:
            del self._peers[next(iter(self._peers))]
        return known
