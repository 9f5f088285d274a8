"""With which peers a node learns: how often each peer's model was merged, recently and in total. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

FADE = 0.9  # decay per round; an eighth is left after twenty rounds
FAINT = 0.02
PEERS = 1024  # peers whose total is kept; the oldest are dropped first


class Affinities:
    def __init__(self) -> None:
        self.lately: dict[str, float] = {}
        self.total: dict[str, int] = {}
        self._taken: Counter[str] = Counter()

    def round(self, row: Mapping[str, Any], taken: Mapping[str, int]) -> None:
        """After a round: the peers that the policy reports as merged, else those whose models were received
        (`taken`: totals by peer)."""
        came = Counter(taken)
        merged = row.get("from")
        news = _named(merged) if isinstance(merged, list | tuple) else came - self._taken
        self._taken = came
        faded = {peer: weight * FADE for peer, weight in self.lately.items()}
        for peer, n in news.items():
            faded[peer] = faded.get(peer, 0.0) + min(n, 1)
            self.total[peer] = self.total.pop(peer, 0) + n
        self.lately = {peer: weight for peer, weight in faded.items() if weight >= FAINT}
        while len(self.total) > PEERS:
            del self.total[next(iter(self.total))]


def _named(merged: Iterable[Any]) -> Counter[str]:
    return Counter(peer for peer in merged if isinstance(peer, str))
