"""Whether models arrive and leave: counts the rounds without any. Pure; time is passed in."""

from __future__ import annotations

from dataclasses import dataclass

ROUNDS, SECONDS = 8, 15.0  # a warning is due after this many rounds and seconds without a model


@dataclass(slots=True)
class Flow:
    """Models in one direction."""

    total: int = 0
    moved_at: float | None = None  # when a round with models ended last
    quiet: int = 0  # rounds since then in which there were peers
    since: float = 0.0  # when those began

    def round(self, total: int, *, expected: bool, now: float) -> None:
        if total > self.total:
            self.total, self.moved_at, self.quiet, self.since = total, now, 0, now
        elif expected:
            self.quiet += 1
        else:
            self.quiet, self.since = 0, now

    def stopped(self, now: float) -> bool:
        return self.quiet >= ROUNDS and now - self.since >= SECONDS


class Exchange:
    """Fed with the totals of a node after every round."""

    def __init__(self) -> None:
        self.received = Flow()
        self.sent = Flow()
        self.receives_nothing = False
        self.sends_nothing = False

    def begin(self, now: float) -> None:
        self.received.since = self.sent.since = now

    def round(self, *, received: int, sent: int, failed: bool, peers: bool, now: float) -> None:
        """`failed`: calls that send have failed in this round. A round in which no peer wanted a model is not a
        failure."""
        self.received.round(received, expected=peers, now=now)
        self.sent.round(sent, expected=peers and failed, now=now)
        self.receives_nothing = self.received.stopped(now)
        self.sends_nothing = self.sent.stopped(now)
