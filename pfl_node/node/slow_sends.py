"""Notices peers to which models regularly do not arrive in time. Pure."""

from __future__ import annotations

from collections import Counter

from pfl_node.errors import PeerError, PeerTimedOut, Reason, Refused
from pfl_node.types import PeerId

LIMIT = 3  # sends that timed out, minus sends that arrived
TOO_SLOW = (
    "most models to this peer time out: the link is too slow for them. Send fewer bytes (wire.encoding = int8, "
    "wire.zstd, wire.compress), fewer models at a time (wire.concurrency), or give them more time (wire.slowest "
    "and wire.min_bandwidth, at both ends); see Slow links in docs/operate.md"
)


class SlowSends:
    def __init__(self) -> None:
        self._score: Counter[PeerId] = Counter()
        self._told: set[PeerId] = set()

    def is_news(self, peer: PeerId, answer: int | PeerError | None) -> bool:
        """Whether this send shows, for the first time, that most sends to the peer time out."""
        if isinstance(answer, int):
            self._score[peer] = max(0, self._score[peer] - 1)
        elif timed_out(answer):
            self._score[peer] += 1
        if self._score[peer] < LIMIT or peer in self._told:
            return False
        self._told.add(peer)
        return True


def timed_out(answer: PeerError | None) -> bool:
    """At either end: the receiver also ends a transfer that is slower than `wire.slowest`."""
    return isinstance(answer, PeerTimedOut) or (isinstance(answer, Refused) and answer.reason is Reason.TRUNCATED)
