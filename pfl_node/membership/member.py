"""A member of the swarm and the rule by which news about it wins over older news. Knows no network, no clock."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal

Role = Literal["node", "bootstrap"]

INCARNATION_LIMIT = 1 << 53  # a forged number must not leave the owner without a higher one


class State(StrEnum):
    ALIVE = "alive"
    SUSPECT = "suspect"
    DEAD = "dead"
    LEFT = "left"

    @property
    def present(self) -> bool:
        """Suspects count as present: they are probed, and may still refute."""
        return self is State.ALIVE or self is State.SUSPECT


# Within one incarnation a later state wins; only the member itself raises the incarnation, and so refutes.
RANK = {State.ALIVE: 0, State.SUSPECT: 1, State.DEAD: 2, State.LEFT: 3}


@dataclass(frozen=True, slots=True)
class Member:
    """What is believed of a member; of oneself it is known."""

    id: str
    name: str
    address: str = ""  # HOST:PORT that others dial; empty: not bound yet
    role: Role = "node"
    run: str = "default"
    round: int = 0
    incarnation: int = 0
    state: State = State.ALIVE


def supersedes(new: Member, old: Member) -> bool:
    """Does `new` say something about the same member that `old` does not know yet?"""
    if new.incarnation != old.incarnation:
        return new.incarnation > old.incarnation
    return RANK[new.state] > RANK[old.state]


def news(new: Member, old: Member) -> bool:
    """Can hearing `new` change anything for one who believes `old`? Mostly not, so it is quick."""
    return new.incarnation != old.incarnation or new.state is not old.state or new.round > old.round


def merge(old: Member, new: Member) -> Member:
    """What to believe after hearing both, in whatever order; `old` itself where there is nothing new.

    One incarnation is one life at one address: within it only the state and the round go forward.
    """
    if new.incarnation != old.incarnation:
        return new if new.incarnation > old.incarnation else old
    if RANK[new.state] > RANK[old.state]:
        return replace(old, state=new.state, round=max(old.round, new.round))
    if new.round > old.round:
        return replace(old, round=new.round)
    return old
