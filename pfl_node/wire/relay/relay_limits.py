"""The limits of one site at a relay, and its use so far. Pure; time is passed in."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

A_DAY = 86_400.0  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayLimits:
    sites: int = 256
    connections: int = 256  # connections of one site
    per_caller: int = 16  # how many of them one caller may have
    bandwidth: float = 12.5e6  # bytes per second of one site, both directions together
    bytes_per_day: int | None = None  # bytes of one site


@dataclass(slots=True)
class SiteUse:
    """The traffic of one site. Its bandwidth is limited by a token bucket that holds the bytes of one second."""

    limits: RelayLimits
    since: float  # beginning of the day
    bytes: int = 0  # bytes in total
    today: int = 0  # bytes today
    opened: int = 0  # connections in total
    callers: Counter[str] = field(default_factory=Counter)  # open connections
    _tokens: float = 0.0
    _filled: float = 0.0

    def refusal(self, caller: str, now: float) -> str | None:
        """The reason why the caller gets no connection."""
        limits = self.limits
        if self.callers.total() >= limits.connections:
            return f"it has {limits.connections} connections already"
        if self.callers[caller] >= limits.per_caller:
            return f"you have {limits.per_caller} connections to it already"
        if self.exhausted(now):
            return f"it has used its {limits.bytes_per_day} bytes for today"
        return None

    def exhausted(self, now: float) -> bool:
        if now - self.since >= A_DAY:
            self.since, self.today = now, 0
        return self.limits.bytes_per_day is not None and self.today >= self.limits.bytes_per_day

    def begin(self, caller: str) -> None:
        self.opened += 1
        self.callers[caller] += 1

    def end(self, caller: str) -> None:
        self.callers[caller] -= 1
        if self.callers[caller] <= 0:
            del self.callers[caller]

    def move(self, size: int, now: float) -> float:
        """Count bytes; returns the seconds until more may be read."""
        self.bytes += size
        self.today += size
        rate = self.limits.bandwidth
        self._tokens = min(rate, self._tokens + (now - self._filled) * rate) - size
        self._filled = now
        return max(0.0, -self._tokens / rate)
