"""Keeps ids unique: a newcomer with the id of a live member is refused. Sans-io."""

from __future__ import annotations

from dataclasses import dataclass

from pfl_node.membership.member import Member, State
from pfl_node.membership.swim_config import SwimConfig
from pfl_node.membership.view import View

CHECKS_LIMIT = 64
CHECK_LIFE = 10.0  # seconds for which the result of a check is valid


@dataclass(frozen=True, slots=True)
class Admission:
    """If `again` is not zero, the id is being checked: the newcomer should retry after `again` seconds."""

    accepted: bool
    reason: str = ""
    again: float = 0.0


@dataclass(slots=True)
class Check:
    """Whether the known member with this id still answers."""

    holder: Member
    since: float
    answered: bool = False


class Admissions:
    def __init__(self, view: View, config: SwimConfig) -> None:
        self._view = view
        self._timeout = 1.5 * config.probe_timeout
        self._checks: dict[str, Check] = {}

    def ask(self, newcomer: Member, now: float) -> tuple[Admission, Member | None]:
        """The decision and, while the id is being checked, the member to ping."""
        me = self._view.me
        if me.state is State.LEFT:
            return Admission(False, f"{me.name} is leaving"), None
        if newcomer.id == me.id:
            return Admission(False, _taken(me)), None
        known = self._view.roster.get(newcomer.id)
        if known is None or not known.state.present or known.address == newcomer.address:
            self._checks.pop(newcomer.id, None)
            return Admission(True), None
        check = self._check(known, now)
        if check.answered:
            return Admission(False, _taken(known)), None
        if now - check.since < self._timeout:
            again = max(self._timeout - (now - check.since), 0.05)
            return Admission(False, f"checking whether {known.address} still has the id {known.id}", again), known
        return Admission(True), None

    def answered(self, member: Member) -> None:
        check = self._checks.get(member.id)
        if check is not None and check.holder.address == member.address:
            check.answered = True

    def _check(self, known: Member, now: float) -> Check:
        self._checks = {i: c for i, c in self._checks.items() if now - c.since < CHECK_LIFE}
        check = self._checks.get(known.id)
        if check is None or check.holder.address != known.address:
            check = Check(known, now)
            if len(self._checks) < CHECKS_LIMIT:
                self._checks[known.id] = check
        return check


def _taken(holder: Member) -> str:
    return (
        f"the id {holder.id} is in use by {holder.name} at {holder.address}, which answers; "
        "give this node a data directory of its own"
    )
