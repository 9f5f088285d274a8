"""How a node that fell behind the swarm gets to its round. Knows no network; it is told how far the others are."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pfl_node.policies.base import Policy
from pfl_node.protocol.mailbox import Mailbox
from pfl_node.types import PeerId

TRUSTING = 5  # rounds after a pause of its own in which a node believes any round, as one that comes late does


class CatchUp:
    """Asked after every round. Only for policies in lockstep; the others' rounds are their own."""

    def __init__(
        self, mailbox: Mailbox, rounds: Callable[[], Mapping[PeerId, int]], pauses: Callable[[], int]
    ) -> None:
        self._mailbox = mailbox
        self._rounds = rounds
        self._pauses = pauses  # of this process, so far
        self._seen = 0
        self._trusting = 0

    def after(self, round: int, policy: Policy) -> int | None:
        """A round is done. Goes on where the others are, if they went on without this node; the answer is their
        round then."""
        if not policy.lockstep:
            return None
        if (pauses := self._pauses()) > self._seen:
            self._seen, self._trusting = pauses, TRUSTING
        absent, self._trusting = self._trusting > 0, max(0, self._trusting - 1)
        if ahead := self._mailbox.left_behind(round, self._rounds(), absent=absent):
            if policy.rounds is not None:
                ahead = min(ahead, policy.rounds)
            policy.round = ahead - 1
            self._mailbox.advance(ahead)
        return ahead
