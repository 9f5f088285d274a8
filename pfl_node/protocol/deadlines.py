"""How long a round waits for whom: as long as each peer usually needs, and some more. Pure; time is handed in.

TCP's rule for its timer (RFC 6298), with the median for the mean and the median deviation for the variance. What a
peer needs is measured from the beginning of my round until its model is here, so it does not depend on how long I
train myself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from math import ceil, inf
from typing import Protocol

from pfl_node.types import PeerId

WINDOW = 9  # rounds of a peer that count
CROWD = 64  # models of all peers that count
ENOUGH = 4  # of them, before it is known what it needs
REGULAR = 0.25  # of what it needs: nobody is believed to be more regular than that
SILENT = 2  # rounds without a word, after which a peer is not waited for until something of it comes
PEERS = 4096  # that are remembered; those silent for longest are forgotten first
ROUNDS = 64  # that are over, of which late models still tell what they needed
FUZZ = 1e-9


class Waiting(Protocol):
    """The part of the `round` section that matters here."""

    @property
    def patience(self) -> float: ...
    @property
    def least(self) -> float: ...
    @property
    def spread(self) -> float: ...


class PeerTiming:
    """What one peer needed in its last rounds."""

    __slots__ = ("_needed", "silent")

    def __init__(self) -> None:
        self._needed: deque[tuple[int, float]] = deque(maxlen=WINDOW)  # round, seconds
        self.silent = 0  # rounds in a row in which it was waited for in vain and nothing else came of it

    def took(self, round: int, seconds: float) -> None:
        """Its model of the round is here, in time or late. What was known of that round at least is forgotten."""
        for place, (known, _) in enumerate(self._needed):
            if known == round:
                del self._needed[place]
                break
        self._needed.append((round, seconds))

    def took_longer(self, round: int, seconds: float) -> None:
        """It was given up after so long. Less than what it usually needs tells nothing."""
        self.silent += 1
        if not self._needed or seconds >= self.usual:
            self._needed.append((round, seconds))

    @property
    def known(self) -> bool:
        return len(self._needed) >= ENOUGH

    @property
    def usual(self) -> float:
        return median(seconds for _, seconds in self._needed)

    def deadline(self, spread: float) -> float:
        """Where it needed more than usual at last, that counts: so a deadline that was too short grows at once."""
        return enough([seconds for _, seconds in self._needed], spread, last=self._needed[-1][1])


class Deadline:
    """The waiting of one round: from when on, and until when for whom. Always between its bounds."""

    __slots__ = ("_began", "_common", "_knows", "_now", "least", "most")

    def __init__(self, knows: Deadlines, *, began: float, now: float, least: float, most: float) -> None:
        self.most = most  # seconds
        self.least = min(least, most)
        self._knows = knows
        self._began = began
        self._now = now
        self._common: float | None = None  # what peers need; worked out when it is asked for

    @property
    def soonest(self) -> float:
        """Before this moment nobody is given up."""
        return self._now + self.least

    def until(self, peer: PeerId) -> float:
        """One of whom little is known is waited for as long as possible; one that usually needs longer than that
        is not worth it."""
        habit = self._knows.habits.get(peer)
        if habit is None or not habit.known:
            return self._now + self.most
        passed = self._now - self._began
        if habit.usual - passed > self.most:
            return self._now + self.least
        if self._common is None:
            self._common = enough(self._knows.crowd, self._knows.settings.spread)
        needed = max(self._common, habit.deadline(self._knows.settings.spread))
        return self._now + min(max(needed - passed, self.least), self.most)

    def last(self, peers: Iterable[PeerId]) -> float:
        """When the waiting for these is over, whoever comes."""
        return max(map(self.until, peers), default=self._now)


class Deadlines:
    """What a node knows of its peers' habits."""

    def __init__(self, settings: Waiting, now: float) -> None:
        self.settings = settings
        self.habits: dict[PeerId, PeerTiming] = {}
        self.crowd: deque[float] = deque(maxlen=CROWD)  # what peers needed, whoever they are
        self._began = now  # my round
        self._started: dict[int, float] = {}  # rounds whose waiting has begun or is over
        self._over = -1  # the last round whose waiting is over
        self._arrivals: dict[tuple[PeerId, int], float] = {}  # of rounds that are not over
        self._spent = 0.0  # seconds of my round that pushes waited in vain

    def spent(self, seconds: float) -> None:
        """The pushes of my round waited so long for peers that took nothing, while models could come."""
        self._spent += seconds

    def enter(self, round: int, now: float, most: float | None = None) -> Deadline:
        """The waiting of a round begins, or began when pushes waited in vain. `most`: the policy's own bound. It
        knows that its peers may need long, so they get at least what peers get of whom nothing is known."""
        self._started[round] = self._began
        while len(self._started) > ROUNDS:
            del self._started[next(iter(self._started))]
        own = self.settings
        least = own.least if most is None else max(own.least, own.patience)
        most = own.patience if most is None else most
        return Deadline(self, began=self._began, now=now - self._spent, least=least, most=most)

    def worth(self, peer: PeerId) -> bool:
        """Is it to be waited for at all?"""
        habit = self.habits.get(peer)
        return habit is None or habit.silent < SILENT

    def came(self, peer: PeerId, round: int, now: float) -> None:
        """A model of the peer for this round is here. Is the round over, it still tells what the peer needed."""
        if habit := self.habits.get(peer):
            habit.silent = 0
        if round > self._over:
            self._arrivals.setdefault((peer, round), now)
        elif round in self._started:
            self._took(peer, round, now - self._started[round])

    def over(self, round: int, asked: Iterable[PeerId], given_up: Collection[PeerId], now: float) -> None:
        """The waiting of a round is over, and my next round begins."""
        for peer in asked:
            if (arrived := self._arrivals.get((peer, round))) is not None:
                self._took(peer, round, max(0.0, arrived - self._began))
            elif peer in given_up:
                self._habit(peer).took_longer(round, now - self._began)
        self._over = max(self._over, round)
        for early in [key for key in self._arrivals if key[1] <= round]:
            del self._arrivals[early]
        self._began, self._spent = now, 0.0

    def _took(self, peer: PeerId, round: int, seconds: float) -> None:
        self._habit(peer).took(round, seconds)
        self.crowd.append(seconds)

    def _habit(self, peer: PeerId) -> PeerTiming:
        habit = self.habits[peer] = self.habits.pop(peer, PeerTiming())
        if len(self.habits) > PEERS:
            del self.habits[next(iter(self.habits))]
        return habit


class SendDeadlines:
    """How long a round lets its pushes hold it up: as long as peers usually need to take a model, and some more. A
    call has a deadline of its own, which knows the model's size and the link; it holds, too."""

    def __init__(self, settings: Waiting) -> None:
        self._settings = settings
        self._habits: dict[PeerId, PeerTiming] = {}

    def seconds(self, peers: Iterable[PeerId]) -> float:
        """Until the last of these should have answered; infinite: nobody knows."""
        return max(map(self._seconds, peers), default=0.0)

    def answered(self, peer: PeerId, number: int, seconds: float) -> None:
        """The push of this number was taken, in time or later."""
        habit = self._habit(peer)
        habit.silent = 0
        habit.took(number, seconds)

    def refused(self, peer: PeerId) -> None:
        """It is there, and how long it needs to take a model is not known from that."""
        if habit := self._habits.get(peer):
            habit.silent = 0

    def usual(self, peer: PeerId) -> float:
        """Seconds after which a push to it is hardly taken any more; 0: nobody knows."""
        habit = self._habits.get(peer)
        return self._deadline(habit) if habit is not None and habit.known else 0.0

    def given_up(self, peer: PeerId, number: int, seconds: float) -> None:
        """The round went on, and the push beside it."""
        if habit := self._habits.get(peer):
            habit.took_longer(number, seconds)

    def failed(self, peer: PeerId, number: int, seconds: float) -> None:
        """The push was not taken. Of one that never took any, nothing else is known than how long that lasted."""
        habit = self._habits.get(peer)
        if seconds >= self._settings.least and (habit is None or not habit.known):
            self._habit(peer).took_longer(number, seconds)

    def _habit(self, peer: PeerId) -> PeerTiming:
        habit = self._habits[peer] = self._habits.pop(peer, PeerTiming())
        if len(self._habits) > PEERS:
            del self._habits[next(iter(self._habits))]
        return habit

    def _seconds(self, peer: PeerId) -> float:
        """One that did not answer lately holds nobody up until it does."""
        habit = self._habits.get(peer)
        if habit is not None and habit.silent >= SILENT:
            return 0.0
        return inf if habit is None or not habit.known else self._deadline(habit)

    def _deadline(self, habit: PeerTiming) -> float:
        return max(self._settings.least, habit.deadline(self._settings.spread))


def enough(needed: Collection[float], spread: float, last: float = 0.0) -> float:
    """The median, or `last` where that is more, and so many median deviations; 0: nothing is known."""
    if not needed:
        return 0.0
    usual = median(needed)
    centre = max(usual, last)
    deviation = median(abs(seconds - usual) for seconds in needed)
    return centre + spread * max(deviation, REGULAR * centre)


def median(values: Iterable[float]) -> float:
    """Of at least one; of an even number the upper one, which waits longer."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


def suffices(here: int, missing: int, quorum: float) -> bool:
    """Are enough here, of all that came or can still come?"""
    return here >= ceil(quorum * (here + missing) - FUZZ)
