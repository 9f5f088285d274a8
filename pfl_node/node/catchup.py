"""Moves a node that fell behind to the round of the swarm."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pfl_node.policies.base import Policy
from pfl_node.protocol.mailbox import Mailbox
from pfl_node.types import PeerId

TRUSTING_ROUNDS = 5  # rounds after a pause of this process in which any round of the peers is believed


class CatchUp:
    """Used by lockstep policies; the rounds of other policies are independent of their peers."""

    def __init__(
        self, mailbox: Mailbox, rounds: Callable[[], Mapping[PeerId, int]], pauses: Callable[[], int]
    ) -> None:
        self._mailbox = mailbox
        self._rounds = rounds
        self._pauses = pauses  # pauses of this process so far
        self._pauses_seen = 0
        self._trusting = 0  # remaining rounds

    def after(self, round: int, policy: Policy) -> int | None:
        """Called after every round. If the swarm is ahead, move to its round and return that."""
        if not policy.lockstep:
            return None
        if (pauses := self._pauses()) > self._pauses_seen:
            self._pauses_seen, self._trusting = pauses, TRUSTING_ROUNDS
        absent, self._trusting = self._trusting > 0, max(0, self._trusting - 1)
        if ahead := self._mailbox.round_to_catch_up(round, self._rounds(), absent=absent):
            if policy.rounds is not None:
                ahead = min(ahead, policy.rounds)
            policy.round = ahead - 1
            self._mailbox.advance(ahead)
        return ahead
