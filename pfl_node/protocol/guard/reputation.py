"""What counts against each peer, and who is in quarantine. Pure; time is handed in."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from math import exp2
from typing import Protocol

from pfl_node.errors import Reason
from pfl_node.types import PeerId

LONGEST = 16  # times the first quarantine
FADED = 0.01  # what counts so little is over, and earlier quarantines with it
PEERS = 4096  # that are remembered; those who did nothing for longest are forgotten first, but not in quarantine

# What is not here says nothing about the peer: it is behind, or I am, it is of another run or task, or the way to
# it is bad. A stream that was cut off may be one that its sender took back, because I was too slow for it.
WEIGHTS = {
    Reason.GARBAGE: 1.0,
    Reason.NOT_FINITE: 1.0,
    Reason.TOO_LARGE: 1.0,
    Reason.BOMB: 1.0,
    Reason.CHECKSUM: 0.1,
    Reason.FLOOD: 0.005,  # an honest one meets a busy receiver, too; three a second for minutes are meant
}


class ReputationRules(Protocol):
    """The part of the `guard` section that matters here."""

    @property
    def limit(self) -> float: ...
    @property
    def half_life(self) -> float: ...
    @property
    def quarantine(self) -> float: ...


@dataclass(slots=True)
class Reputation:
    """Of one peer."""

    score: float = 0.0  # as it was `at`
    at: float = 0.0
    until: float = 0.0  # the end of its quarantine
    times: int = 0  # it was in quarantine


class Reputations:
    """A peer that does nothing wrong for a while is as good as new."""

    def __init__(self, rules: ReputationRules) -> None:
        self.rules = rules
        self._records: OrderedDict[PeerId, Reputation] = OrderedDict()

    def count(self, peer: PeerId, weight: float, now: float) -> float | None:
        """Something counts against a peer; the seconds of its quarantine, if that is the result."""
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
        # Afterwards it gets another chance, and less of one each time.
        record.score, record.at = self.rules.limit / 2, record.until
        return seconds

    def left(self, peer: PeerId, now: float) -> float:
        """Seconds of its quarantine; 0: it is free."""
        record = self._records.get(peer)
        return max(0.0, record.until - now) if record else 0.0

    def against(self, now: float) -> dict[PeerId, float]:
        """What counts against whom, where it is worth telling."""
        scores = {peer: self._decayed(record, now) for peer, record in self._records.items()}
        return {peer: score for peer, score in scores.items() if score >= FADED}

    def quarantined(self, now: float) -> dict[PeerId, float]:
        """Who is in quarantine, and for how many seconds more."""
        return {peer: record.until - now for peer, record in self._records.items() if record.until > now}

    def dump(self) -> dict[str, list[float]]:
        """As JSON has it."""
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
