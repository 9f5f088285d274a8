"""Who may still bring a model for a round that is over: those that it waited for in vain. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from pfl_node.types import PeerId


@dataclass(frozen=True, slots=True)
class ClosedRound:
    """A round that is over."""

    asked: frozenset[PeerId]
    came: frozenset[PeerId]
    others: bool  # whoever sent was welcome


class LateArrivals:
    """The last rounds. A peer has one voice in each: who came in time cannot come again."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds  # that a model may be late; 0: none may
        self._closed: dict[int, ClosedRound] = {}

    def close(self, round: int, asked: Iterable[PeerId], came: Iterable[PeerId], *, others: bool) -> None:
        if self.rounds:
            self._closed[round] = ClosedRound(frozenset(asked), frozenset(came), others)

    def owes(self, peer: PeerId, round: int) -> bool:
        closed = self._closed.get(round)
        return closed is not None and peer not in closed.came and (closed.others or peer in closed.asked)

    def paid(self, round: int, peers: Iterable[PeerId]) -> None:
        """Their models came late and were used."""
        if closed := self._closed.get(round):
            self._closed[round] = replace(closed, came=closed.came.union(peers))

    def __contains__(self, round: int) -> bool:
        """May anybody still come for it?"""
        return round in self._closed

    def forget(self, before: int) -> None:
        """What is older than this round comes too late."""
        for old in [r for r in self._closed if r < before]:
            del self._closed[old]
