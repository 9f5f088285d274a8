"""Counts by the names of peers, bounded: without TLS a caller may use a new name for every call. Pure."""

from __future__ import annotations

from collections import Counter
from typing import TypeVar

K = TypeVar("K")

NAMES = 2048


class BoundedCounter(Counter[K]):
    """A Counter of at most so many keys. The one that was counted longest ago makes room, and its count goes to
    `rest`, where there is one: the total stays right."""

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
