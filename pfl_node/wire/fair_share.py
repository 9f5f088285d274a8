"""Divides the time of the event loop among callers while they use too much of it. Pure; loads are passed in."""

from __future__ import annotations

from collections.abc import Collection
from math import inf

RECOVERY = 1.5  # factor by which the limit grows per interval without overload
CALL, BYTE, TLS_START = 1.0, 1 / (1 << 16), 3.0  # units: 64 KB cost about as much as a call


class FairShare:
    """Callers spend units of work. If the thread was overloaded in one interval, each may spend at most an equal
    share in the next one; those that spend less leave the rest to others."""

    def __init__(self) -> None:
        self.limit = inf  # units of one caller per interval
        self._spent: dict[str, float] = {}

    def exhausted(self, caller: str) -> bool:
        """Whether the caller has spent its share of this interval."""
        return self._spent.get(caller, 0.0) >= self.limit

    def spend(self, caller: str, units: float) -> bool:
        """Whether the caller must wait for the next interval."""
        self._spent[caller] = spent = self._spent.get(caller, 0.0) + units
        return spent >= self.limit

    def renew(self, load: float, share: float) -> None:
        """Begin an interval. `load`: the fraction of the last interval in which the thread was busy; `share`: the
        fraction that is allowed."""
        spent = self._spent.values()
        if load > share:
            self.limit = max(1.0, fair_level(spent, sum(spent) * share / load))
        elif self.limit > 2 * max(spent, default=0.0):
            self.limit = inf
        else:
            self.limit *= RECOVERY
        self._spent.clear()


def fair_level(wanted: Collection[float], capacity: float) -> float:
    """The largest amount per caller such that all together get `capacity`: max-min fairness."""
    left, number = capacity, len(wanted)
    for amount in sorted(wanted):
        if amount * number > left:
            return left / number
        left, number = left - amount, number - 1
    return inf
