"""How long a node that is done stays for the others. Pure; time is handed in."""

from __future__ import annotations

from collections.abc import Mapping

from pfl_node.types import PeerId


class LingerTimer:
    """As long as somebody gets on. A peer gets on when it is in a round in which it was not yet: going back and
    coming again, or coming anew, does not count. So it ends, whatever is said."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._progress: float | None = None  # when somebody got on, or the lingering began
        self._furthest: dict[PeerId, int] = {}

    def dump(self) -> tuple[float | None, dict[PeerId, int]]:
        """For `load`."""
        return self._progress, dict(self._furthest)

    def load(self, row: tuple[float | None, Mapping[PeerId, int]]) -> None:
        self._progress, self._furthest = row[0], dict(row[1])

    def left(self, now: float, at_work: Mapping[PeerId, int]) -> float:
        """Seconds to stay if nothing changes, for those who are at work and in which round; 0: go."""
        if self._progress is None:
            self._progress = now
        for peer, round in at_work.items():
            known = self._furthest.setdefault(peer, round)
            if round > known:
                self._furthest[peer], self._progress = round, now
        return max(0.0, self._progress + self._patience - now) if at_work else 0.0
