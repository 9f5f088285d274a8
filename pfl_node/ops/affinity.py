"""Whom a node learns with: how often each peer's model went into its own, lately and in all. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

FADE = 0.9  # what is left of a tie after a round; after twenty rounds it is an eighth
FAINT = 0.02
PEERS = 1024  # of whom the total is kept; those heard of first are forgotten first


class Affinities:
    """Told of every round that is done."""

    def __init__(self) -> None:
        self.lately: dict[str, float] = {}
        self.total: dict[str, int] = {}
        self._taken: Counter[str] = Counter()

    def round(self, row: Mapping[str, Any], taken: Mapping[str, int]) -> None:
        """Whom the policy says it merged; where it does not say, whose models came (`taken`: so far, by peer)."""
        came = Counter(taken)
        merged = row.get("from")
        news = _named(merged) if isinstance(merged, list | tuple) else came - self._taken
        self._taken = came
        faded = {peer: tie * FADE for peer, tie in self.lately.items()}
        for peer, n in news.items():
            faded[peer] = faded.get(peer, 0.0) + min(n, 1)
            self.total[peer] = self.total.pop(peer, 0) + n
        self.lately = {peer: tie for peer, tie in faded.items() if tie >= FAINT}
        while len(self.total) > PEERS:
            del self.total[next(iter(self.total))]


def _named(merged: Iterable[Any]) -> Counter[str]:
    return Counter(peer for peer in merged if isinstance(peer, str))
