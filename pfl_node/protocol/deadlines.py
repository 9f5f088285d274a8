"""How long a round waits for each peer: as long as the peer usually needs, plus a margin. Pure; time is passed in.

This is TCP's retransmission timer (RFC 6298) with median and median deviation instead of mean and variance. The
time that a peer needs is measured from the start of my round until its model begins to arrive, so it depends
neither on my own training nor on the link. A model that is arriving is awaited while its transfer makes progress.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf
from typing import Any

from pfl_node.settings import RoundSettings
from pfl_node.types import PeerId

WINDOW = 9  # rounds of a peer that are remembered
RECENT = 64  # arrival times of all peers that are remembered
MIN_HISTORY = 4  # rounds of a peer before its times are used
REGULAR = 0.25  # smallest assumed deviation, as a share of the median
SILENT = 2  # silent rounds after which a peer is not awaited until it sends something
PEERS = 4096  # peers that are remembered; the least recently heard are dropped first
ROUNDS = 64  # closed rounds whose late models are still measured
ARRIVALS = 4096  # models that are arriving or broke off
FUZZ = 1e-9


class PeerTiming:
    """The time that one peer needed in its last rounds."""

    __slots__ = ("_needed", "silent")

    def __init__(self) -> None:
        self._needed: list[tuple[int, float]] = []  # round, seconds; a deque would take ten times the memory
        self.silent = 0  # consecutive rounds in which nothing arrived

    def record_time(self, round: int, seconds: float) -> None:
        """Its model of the round arrived, in time or late; replaces a lower bound recorded for the round."""
        for place, (known, _) in enumerate(self._needed):
            if known == round:
                del self._needed[place]
                break
        self._add(round, seconds)

    def record_timeout(self, round: int, seconds: float) -> None:
        """The round gave up on it after `seconds`. If that is less than its usual time, it is ignored."""
        self.silent += 1
        if not self._needed or seconds >= self.usual:
            self._add(round, seconds)

    def _add(self, round: int, seconds: float) -> None:
        self._needed.append((round, seconds))
        del self._needed[:-WINDOW]

    def dump(self) -> tuple[Any, ...]:
        return self.silent, *self._needed

    @classmethod
    def load(cls, row: Sequence[Any]) -> PeerTiming:
        timing = cls()
        timing.silent, *needed = row
        timing._needed.extend(needed)
        return timing

    @property
    def known(self) -> bool:
        return len(self._needed) >= MIN_HISTORY

    @property
    def usual(self) -> float:
        return median(seconds for _, seconds in self._needed)

    def deadline(self, spread: float) -> float:
        """If the peer took longer than usual in the last round, that time is used, so that a deadline that was too
        short grows immediately."""
        return deadline_from([seconds for _, seconds in self._needed], spread, last=self._needed[-1][1])


@dataclass(slots=True)
class Arrival:
    """A model that is arriving."""

    began: float
    broke: float | None = None  # when its transfer broke off; the sender may continue it


class Deadline:
    """Until when one round waits for each peer, within its bounds."""

    __slots__ = ("_began", "_common", "_deadlines", "_now", "_round", "least", "most")

    def __init__(
        self, deadlines: Deadlines, round: int, *, began: float, now: float, least: float, most: float
    ) -> None:
        self._round = round
        self.most = most  # seconds
        self.least = min(least, most)
        self._deadlines = deadlines
        self._began = began
        self._now = now
        self._common: float | None = None  # usual time of all peers; computed on demand

    @property
    def soonest(self) -> float:
        """No peer is given up before this time."""
        return self._now + self.least

    def until(self, peer: PeerId) -> float:
        """When the model of the peer should begin to arrive or, if it is arriving, should be complete."""
        return max(self._begins(peer), self._deadlines.arrives_until(peer, self._round))

    def _begins(self, peer: PeerId) -> float:
        """A peer without a history gets the maximum; one that usually takes longer than the maximum gets the
        minimum."""
        timing = self._deadlines.timings.get(peer)
        if timing is None or not timing.known:
            return self._now + self.most
        passed = self._now - self._began
        if timing.usual - passed > self.most:
            return self._now + self.least
        if self._common is None:
            self._common = deadline_from(self._deadlines.recent, self._deadlines.settings.spread)
        needed = max(self._common, timing.deadline(self._deadlines.settings.spread))
        return self._now + min(max(needed - passed, self.least), self.most)

    def last(self, peers: Iterable[PeerId]) -> float:
        """The latest deadline of these peers."""
        return max(map(self.until, peers), default=self._now)


class Deadlines:
    """The timing of all peers of a node."""

    def __init__(self, settings: RoundSettings, now: float | None = None) -> None:
        self.settings = settings
        self.timings: dict[PeerId, PeerTiming] = {}
        self.recent: deque[float] = deque(maxlen=RECENT)  # arrival times of any peers, in seconds
        self._begun = now  # start of my round; None: no round has begun
        self._started: dict[int, float] = {}  # start of each round that has begun to wait
        self._over = -1  # the last closed round
        self._arrivals: dict[tuple[PeerId, int], float] = {}  # when models of open rounds began to arrive
        self._spent = 0.0  # seconds of my round in which pushes timed out
        self._arriving: dict[tuple[PeerId, int], Arrival] = {}

    def begin(self, now: float) -> None:
        """My first round begins."""
        self._begun = now if self._begun is None else self._begun

    def resume(self, now: float) -> None:
        """My round begins now: the wait before it does not count."""
        self._begun = now

    @property
    def _began(self) -> float:
        assert self._begun is not None
        return self._begun

    def spent(self, seconds: float) -> None:
        """The pushes of my round waited this long for unresponsive peers; models could arrive meanwhile."""
        self._spent += seconds

    def enter(self, round: int, now: float, most: float | None = None) -> Deadline:
        """A round begins to wait, retroactively if its pushes timed out. `most` is the policy's own limit: its
        peers may need long, so they get at least the time of peers without a history."""
        self._started[round] = self._began
        while len(self._started) > ROUNDS:
            del self._started[next(iter(self._started))]
        own = self.settings
        least = own.least if most is None else max(own.least, own.patience)
        most = own.patience if most is None else most
        return Deadline(self, round, began=self._began, now=now - self._spent, least=least, most=most)

    def should_wait(self, peer: PeerId, round: int) -> bool:
        """Whether to wait for the peer's model of this round at all."""
        timing = self.timings.get(peer)
        return timing is None or timing.silent < SILENT or (peer, round) in self._arriving

    def arrives(self, peer: PeerId, round: int, now: float) -> None:
        """A model begins to arrive, or continues after its transfer broke off."""
        if arrival := self._arriving.get((peer, round)):
            arrival.broke = None
        elif len(self._arriving) < ARRIVALS:
            self._arriving[peer, round] = Arrival(now)

    def stopped(self, peer: PeerId, round: int, now: float, *, resumes: bool) -> None:
        """The transfer of a model broke off; if it `resumes`, the sender may continue it."""
        arrival = self._arriving.get((peer, round))
        if arrival and resumes and round > self._over:
            arrival.broke = now
        elif arrival:
            del self._arriving[peer, round]

    def arrives_until(self, peer: PeerId, round: int) -> float:
        """How long to wait for a model that is arriving. The receiver of the bytes ends a transfer without
        progress."""
        arrival = self._arriving.get((peer, round))
        if arrival is None:
            return -inf
        end = arrival.began + self.settings.transfer
        return end if arrival.broke is None else min(end, arrival.broke + self.settings.patience)

    def arrived(self, peer: PeerId, round: int, now: float) -> None:
        """A model of the peer for this round arrived. A late one still shows how long the peer needed until it
        began to arrive."""
        if arrival := self._arriving.pop((peer, round), None):
            now = arrival.began
        if timing := self.timings.get(peer):
            timing.silent = 0
        if round > self._over:
            self._arrivals.setdefault((peer, round), now)
        elif round in self._started:
            self._record_time(peer, round, now - self._started[round])

    def over(self, round: int, asked: Iterable[PeerId], given_up: Collection[PeerId], now: float) -> None:
        """The round stops waiting, and my next round begins."""
        for peer in asked:
            if (arrived := self._arrivals.get((peer, round))) is not None:
                self._record_time(peer, round, max(0.0, arrived - self._began))
            elif peer in given_up:
                self._timing_of(peer).record_timeout(round, now - self._began)
        self._over = max(self._over, round)
        for early in [key for key in self._arrivals if key[1] <= round]:
            del self._arrivals[early]
        for broken in [key for key, one in self._arriving.items() if key[1] <= round and one.broke is not None]:
            del self._arriving[broken]
        self._begun, self._spent = now, 0.0

    def dump(self) -> dict[str, Any]:
        """The state for the next segment of a simulation."""
        return {
            "timings": {peer: timing.dump() for peer, timing in self.timings.items()},
            "recent": list(self.recent),
            "own": (self._begun, self._over, self._spent),
            "started": dict(self._started),
            "arrivals": dict(self._arrivals),
        }

    def load(self, row: Mapping[str, Any]) -> None:
        self.timings = {peer: PeerTiming.load(timing) for peer, timing in row["timings"].items()}
        self.recent.extend(row["recent"])
        self._begun, self._over, self._spent = row["own"]
        self._started, self._arrivals = dict(row["started"]), dict(row["arrivals"])

    def _record_time(self, peer: PeerId, round: int, seconds: float) -> None:
        self._timing_of(peer).record_time(round, seconds)
        self.recent.append(seconds)

    def _timing_of(self, peer: PeerId) -> PeerTiming:
        timing = self.timings[peer] = self.timings.pop(peer, PeerTiming())
        if len(self.timings) > PEERS:
            del self.timings[next(iter(self.timings))]
        return timing


class SendDeadlines:
    """How long the pushes of a round may delay it: as long as peers usually need to accept a model, plus a margin.
    In addition, each call has its own deadline, which depends on the model's size and the link."""

    def __init__(self, settings: RoundSettings) -> None:
        self._settings = settings
        self._timings: dict[PeerId, PeerTiming] = {}

    def seconds(self, peers: Iterable[PeerId]) -> float:
        """Until the last of these peers should have answered; infinite: unknown."""
        return max(map(self._seconds, peers), default=0.0)

    def answered(self, peer: PeerId, number: int, seconds: float) -> None:
        """The push with this number was accepted, in time or late."""
        timing = self._timing_of(peer)
        timing.silent = 0
        timing.record_time(number, seconds)

    def refused(self, peer: PeerId) -> None:
        """The peer is alive; a refusal does not show how long it needs to accept a model."""
        if timing := self._timings.get(peer):
            timing.silent = 0

    def usual(self, peer: PeerId) -> float:
        """Seconds after which the peer is unlikely to accept a push; 0: unknown."""
        timing = self._timings.get(peer)
        return self._deadline(timing) if timing is not None and timing.known else 0.0

    def given_up(self, peer: PeerId, number: int, seconds: float) -> None:
        """The round continued without waiting for the push."""
        if timing := self._timings.get(peer):
            timing.record_timeout(number, seconds)

    def failed(self, peer: PeerId, number: int, seconds: float) -> None:
        """The push was not accepted. For a peer that never accepted one, this duration is all that is known."""
        timing = self._timings.get(peer)
        if seconds >= self._settings.least and (timing is None or not timing.known):
            self._timing_of(peer).record_timeout(number, seconds)

    def _timing_of(self, peer: PeerId) -> PeerTiming:
        timing = self._timings[peer] = self._timings.pop(peer, PeerTiming())
        if len(self._timings) > PEERS:
            del self._timings[next(iter(self._timings))]
        return timing

    def dump(self) -> dict[PeerId, Any]:
        """The state for the next segment of a simulation."""
        return {peer: timing.dump() for peer, timing in self._timings.items()}

    def load(self, rows: Mapping[PeerId, Any]) -> None:
        self._timings = {peer: PeerTiming.load(timing) for peer, timing in rows.items()}

    def _seconds(self, peer: PeerId) -> float:
        """A peer that did not answer recently does not delay the round."""
        timing = self._timings.get(peer)
        if timing is not None and timing.silent >= SILENT:
            return 0.0
        return inf if timing is None or not timing.known else self._deadline(timing)

    def _deadline(self, timing: PeerTiming) -> float:
        return max(self._settings.least, timing.deadline(self._settings.spread))


def deadline_from(needed: Collection[float], spread: float, last: float = 0.0) -> float:
    """The median, or `last` if that is larger, plus `spread` median deviations; 0: no data."""
    if not needed:
        return 0.0
    usual = median(needed)
    centre = max(usual, last)
    deviation = median(abs(seconds - usual) for seconds in needed)
    return centre + spread * max(deviation, REGULAR * centre)


def median(values: Iterable[float]) -> float:
    """The median of at least one value. For an even number of values it is the upper one, which waits longer."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


def suffices(here: int, missing: int, quorum: float) -> bool:
    """Whether a quorum has arrived of the models that have arrived or still can."""
    return here >= ceil(quorum * (here + missing) - FUZZ)
