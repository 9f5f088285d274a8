"""Limits on calls and work per peer within a minute, and counters with a bounded number of peers. Pure; time is
passed in."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from math import inf
from typing import TypeVar

from pfl_node.errors import Reason, Refused
from pfl_node.types import PeerId

K = TypeVar("K")

MINUTE = 60.0
BURST = 1.0  # seconds of work for all peers together that are allowed at once
NAMES = 2048
CALLERS = 4096  # callers that are remembered; without TLS one caller can use many names


class SlidingWindow:
    """The times and amounts of each peer's actions within the window."""

    def __init__(self, window: float) -> None:
        self.window = window
        self._of: defaultdict[PeerId, list[tuple[float, float]]] = defaultdict(list)
        self._sweep_at = 0.0

    def of(self, peer: PeerId, now: float) -> Sequence[tuple[float, float]]:
        found = self._of.get(peer)
        if not found:
            return ()
        del found[: bisect_right(found, (now - self.window, inf))]
        return found

    def add(self, peer: PeerId, amount: float, now: float) -> None:
        if now >= self._sweep_at:
            self._sweep(now)
        if peer not in self._of and len(self._of) >= CALLERS:
            del self._of[next(iter(self._of))]
        self._of[peer].append((now, amount))

    def __len__(self) -> int:
        return len(self._of)

    def _sweep(self, now: float) -> None:
        """Once per window, drop idle peers, so that invented names do not accumulate."""
        self._sweep_at = now + self.window
        for peer in [p for p, done in self._of.items() if not done or done[-1][0] <= now - self.window]:
            del self._of[peer]


class RateLimit:
    """At most `limit` calls of one peer in any window."""

    def __init__(self, limit: int, window: float = MINUTE) -> None:
        self.limit = limit
        self.calls = SlidingWindow(window)

    def take(self, peer: PeerId, now: float) -> None:
        calls, window = self.calls.of(peer, now), self.calls.window
        if len(calls) >= self.limit:
            wait = calls[0][0] + window - now
            raise Refused(Reason.FLOOD, f"more than {self.limit} calls in {window:g} s; wait {wait:.1f} s", peer)
        self.calls.add(peer, 1.0, now)


class EffortLimit:
    """At most `most` seconds of work per window for all peers together, BURST of them at once, half of them for
    one peer; the job that exceeds the limit is completed."""

    def __init__(self, most: float, window: float = MINUTE) -> None:
        self.most = most
        self.work = SlidingWindow(window)
        self._level = 0.0  # level of a leaky bucket at the time `_at`, in seconds of work for all peers
        self._at = 0.0
        self._last = 0.0  # seconds that the last job took

    def check(self, peer: PeerId, now: float, under_way: int = 0) -> None:
        """Raises Refused if no job for this peer may begin while `under_way` other jobs are in progress."""
        took = sum(seconds for _, seconds in self.work.of(peer, now))
        if took >= self.most / 2:
            raise Refused(Reason.FLOOD, f"your models took {took:.1f} s of the last {self.work.window:g} s", peer)
        if self._level_at(now) + under_way * self._last >= BURST:
            raise Refused(Reason.FLOOD, "models of other peers use all the time left by training", peer)

    def done(self, peer: PeerId, seconds: float, now: float) -> None:
        self.work.add(peer, seconds, now)
        self._level, self._at, self._last = self._level_at(now) + seconds, now, seconds

    def _level_at(self, now: float) -> float:
        return max(0.0, self._level - (now - self._at) * self.most / self.work.window)


class BoundedCounter(Counter[K]):
    """A Counter with at most `names` keys, because without TLS a caller may use a new name for every call. The
    least recently counted key is dropped, and its count is added to `rest`, if given, so that the total stays
    correct."""

    def __init__(self, rest: K | None = None, *, names: int = NAMES) -> None:
        super().__init__()
        self._rest = rest
        self._names = names

    def __setitem__(self, key: K, count: int) -> None:
        self.pop(key, None)
        super().__setitem__(key, count)
        if len(self) > self._names:
            oldest = next(known for known in self if known != self._rest)
            gone = self.pop(oldest)
            if self._rest is not None:
                super().__setitem__(self._rest, self[self._rest] + gone)
