"""How long a node that has finished keeps serving its peers. Pure; the caller passes the time."""

from __future__ import annotations

from collections.abc import Mapping

from pfl_node.types import PeerId


class LingerTimer:
    """Runs as long as some peer makes progress, which means a round higher than any it was in before. Going back
    or rejoining does not count, so lingering ends whatever rounds peers claim."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout  # seconds without progress
        self._progress: float | None = None  # time of the last progress, or the start
        self._furthest: dict[PeerId, int] = {}

    def dump(self) -> tuple[float | None, dict[PeerId, int]]:
        return self._progress, dict(self._furthest)

    def load(self, row: tuple[float | None, Mapping[PeerId, int]]) -> None:
        self._progress, self._furthest = row[0], dict(row[1])

    def left(self, now: float, working: Mapping[PeerId, int]) -> float:
        """Seconds to stay unless something changes; 0: leave. `working` has the rounds of unfinished peers."""
        if self._progress is None:
            self._progress = now
        for peer, round in working.items():
            known = self._furthest.setdefault(peer, round)
            if round > known:
                self._furthest[peer], self._progress = round, now
        return max(0.0, self._progress + self._timeout - now) if working else 0.0
