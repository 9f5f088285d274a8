"""Keyed timers on a heap; setting a timer again moves it. Time is passed in."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

Key = tuple[str, str | int]


class Timers:
    def __init__(self) -> None:
        self._when: dict[Key, tuple[float, int]] = {}
        self._heap: list[tuple[float, int, Key]] = []
        self._count = 0

    def __contains__(self, key: Key) -> bool:
        return key in self._when

    def __len__(self) -> int:
        return len(self._when)

    def set(self, key: Key, when: float) -> None:
        self._count += 1  # equal times fire in the order they were set
        self._when[key] = (when, self._count)
        heappush(self._heap, (when, self._count, key))
        if len(self._heap) > 2 * len(self._when) + 64:
            self._heap = [(at, count, key) for key, (at, count) in self._when.items()]
            heapify(self._heap)

    def cancel(self, key: Key) -> None:
        self._when.pop(key, None)

    def clear(self) -> None:
        self._when.clear()
        self._heap.clear()

    def next(self) -> float | None:
        heap = self._heap
        while heap and self._when.get(heap[0][2]) != heap[0][:2]:
            heappop(heap)
        return heap[0][0] if heap else None

    def due(self, now: float) -> Iterator[Key]:
        """Remove and yield the expired timers."""
        while (when := self.next()) is not None and when <= now:
            key = heappop(self._heap)[2]
            del self._when[key]
            yield key
