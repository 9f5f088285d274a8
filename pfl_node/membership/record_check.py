"""Checks the records in one message. Sans-io.

With signatures, a record with new facts must be signed by its member. Any other record is reduced to an
opinion about the known one, so most records are never verified. Honest members pass on only what they verified: a
forged record is the sender's fault, and the rest of its message is ignored.
"""

from __future__ import annotations

from dataclasses import replace

from pfl_node.membership.member import Member, State, follows, supersedes
from pfl_node.membership.packet import Rumor
from pfl_node.membership.signatures import Proof, Signatures
from pfl_node.membership.view import View

OPINIONS = (State.SUSPECT, State.DEAD)


class RecordCheck:
    """At most one record per member is used, so that a message costs one verification for each real member."""

    def __init__(self, view: View, signatures: Signatures, now: float) -> None:
        self._view = view
        self._signatures = signatures
        self._now = now
        self._seen: set[str] = set()
        self.unknown: list[Rumor] = []  # the member's key has to be fetched first
        self.forged: Member | None = None

    def trusted(self, rumor: Rumor) -> Rumor | None:
        """The part of the rumour that is accepted; None: nothing."""
        if not self._signatures.required:
            return rumor
        new = rumor.member
        if self.forged is not None or new.id in self._seen:
            return None
        self._seen.add(new.id)
        if not needs_proof(self._view, new, self._now):
            return self._opinion(rumor)
        match self._signatures.verify(new):
            case Proof.FORGED:
                self.forged = new
            case Proof.UNKNOWN:
                self.unknown.append(rumor)
            case Proof.GENUINE:
                if self._signatures.outdated(new):
                    self.unknown.append(rumor)
                return rumor
        return None

    def _opinion(self, rumor: Rumor) -> Rumor | None:
        known = self._view.find(rumor.member.id)
        if known is None or known.incarnation != rumor.member.incarnation:
            return None
        signed = State.LEFT if known.left else State.ALIVE
        state = rumor.member.state if rumor.member.state in OPINIONS else signed
        return Rumor(replace(known, state=state), rumor.by)


def needs_proof(view: View, new: Member, now: float) -> bool:
    """Does the record have facts about its member that are not known yet?"""
    known = view.find(new.id)
    if known is None:
        tombstone = view.roster.tombstone(new.id, now)
        return tombstone is None or supersedes(new, tombstone)
    if new.incarnation != known.incarnation:
        return new.incarnation > known.incarnation
    return follows(new, known)
