"""Penalties of peers, and which peers are quarantined. Pure; time is passed in."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from math import exp2

from pfl_node.errors import Reason
from pfl_node.settings.sections import GuardSettings
from pfl_node.types import PeerId

LONGEST = 16  # largest multiple of the first quarantine
FADED = 0.01  # a smaller penalty is forgotten, together with earlier quarantines
PEERS = 4096  # peers that are remembered; the least recently penalised is dropped first, unless quarantined

# Other reasons are not the peer's fault: one of us is behind, run, task or release differ, or the link is bad. The
# sender of a truncated stream may have cancelled it because this node was too slow.
WEIGHTS = {
    Reason.GARBAGE: 1.0,
    Reason.NOT_FINITE: 1.0,
    Reason.TOO_LARGE: 1.0,
    Reason.BOMB: 1.0,
    Reason.CHECKSUM: 0.1,
    Reason.FLOOD: 0.005,  # honest peers may hit a limit too; this counts at three per second over minutes
}


@dataclass(slots=True)
class Reputation:
    """The penalty of one peer."""

    score: float = 0.0  # the penalty at the time `at`
    at: float = 0.0
    until: float = 0.0  # the end of its quarantine
    times: int = 0  # number of its quarantines


class Reputations:
    """Penalties decay, so that a peer that behaves for a while starts afresh."""

    def __init__(self, rules: GuardSettings) -> None:
        self.rules = rules
        self._records: OrderedDict[PeerId, Reputation] = OrderedDict()

    def count(self, peer: PeerId, weight: float, now: float) -> float | None:
        """Add a penalty; returns the seconds of the quarantine, if that is the consequence."""
        if weight <= 0 or self.left(peer, now):
            return None
        record = self._records.setdefault(peer, Reputation(at=now))
        self._records.move_to_end(peer)
        if (before := self._decayed(record, now)) < FADED:
            record.times = 0
        record.score, record.at = before + weight, now
        self._forget(now)
        if record.score < self.rules.limit or self.rules.quarantine <= 0:
            return None
        seconds = self.rules.quarantine * min(1 << record.times, LONGEST)
        record.until, record.times = now + seconds, min(record.times + 1, LONGEST)
        # after the quarantine, half of the limit remains
        record.score, record.at = self.rules.limit / 2, record.until
        return seconds

    def left(self, peer: PeerId, now: float) -> float:
        """Remaining seconds of its quarantine; 0: not quarantined."""
        record = self._records.get(peer)
        return max(0.0, record.until - now) if record else 0.0

    def against(self, now: float) -> dict[PeerId, float]:
        """The penalties that are worth reporting."""
        scores = {peer: self._decayed(record, now) for peer, record in self._records.items()}
        return {peer: score for peer, score in scores.items() if score >= FADED}

    def quarantined(self, now: float) -> dict[PeerId, float]:
        """Quarantined peers and their remaining seconds."""
        return {peer: record.until - now for peer, record in self._records.items() if record.until > now}

    def dump(self) -> dict[str, list[float]]:
        return {peer: [r.score, r.at, r.until, r.times] for peer, r in self._records.items()}

    def load(self, rows: dict[str, list[float]]) -> None:
        self._records.clear()
        for peer, (score, at, until, times) in rows.items():
            self._records[PeerId(peer)] = Reputation(score, at, until, int(times))

    def _decayed(self, record: Reputation, now: float) -> float:
        return record.score * exp2(-max(0.0, now - record.at) / self.rules.half_life)

    def _forget(self, now: float) -> None:
        if len(self._records) > PEERS:
            free = next((peer for peer, record in self._records.items() if record.until <= now), None)
            self._records.pop(next(iter(self._records)) if free is None else free)
