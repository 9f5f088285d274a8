"""A member of the swarm, and the precedence of updates about it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Literal

from pfl_node.address import relayed_address

Role = Literal["node", "bootstrap"]

INCARNATION_LIMIT = 1 << 53
ORDINARY = 1 << 20  # an incarnation that no member reaches by restarts and refutations
JUMP = 1024  # how far one rumour may exceed ORDINARY or the known incarnation
RELAYS_LIMIT = 3  # relays of one member
RENEWED = 60  # seconds by which a signature must be newer than another one of the same facts to replace it


class State(StrEnum):
    ALIVE = "alive"
    SUSPECT = "suspect"
    DEAD = "dead"
    LEFT = "left"

    @property
    def present(self) -> bool:
        """Suspected members count as present: they are probed and may refute the suspicion."""
        return self is State.ALIVE or self is State.SUSPECT


class Reachability(StrEnum):
    """Whether others can open connections to a member, according to its own record."""

    UNKNOWN = "unknown"  # not checked yet
    DIRECT = "direct"
    RELAYED = "relayed"  # through its relays only
    UNREACHABLE = "unreachable"


# Within an incarnation a higher rank wins. Only the member itself increases its incarnation, to refute a rumour.
RANK = {State.ALIVE: 0, State.SUSPECT: 1, State.DEAD: 2, State.LEFT: 3}


@dataclass(frozen=True, slots=True)
class Seal:
    """A member's signature of its own record. Opinions of others (SUSPECT, DEAD) are not part of the record."""

    at: int  # seconds since 1970
    credential: bytes  # a short hash of the key or certificate with which to verify the signature
    signature: bytes


@dataclass(frozen=True, slots=True)
class Member:
    id: str
    name: str
    address: str = ""  # HOST:PORT; empty before the port is bound
    role: Role = "node"
    run: str = "default"
    round: int = 0
    incarnation: int = 0
    state: State = State.ALIVE
    reachability: Reachability = Reachability.UNKNOWN
    relays: tuple[str, ...] = ()  # HOST:PORT of the members that forward connections to it
    offers_relay: bool = False  # forwards connections to others
    pair_key: bytes = b""  # public X25519 key for pairwise secrets; empty: it shares none
    seal: Seal | None = field(default=None, compare=False)  # None: not signed

    @property
    def dial_address(self) -> str:
        """The address that others dial; for a relayed member it names the relays and the member."""
        if self.reachability is Reachability.RELAYED and self.relays:
            return relayed_address(self.relays, self.id)
        return self.address

    @property
    def left(self) -> bool:
        return self.state is State.LEFT


def plausible(incarnation: int, known: int = 0) -> bool:
    """A forged incarnation must leave its owner a higher one that every member accepts."""
    return 0 <= incarnation < min(max(ORDINARY, known) + JUMP, INCARNATION_LIMIT - JUMP)


def supersedes(new: Member, old: Member) -> bool:
    if new.incarnation != old.incarnation:
        return new.incarnation > old.incarnation
    return RANK[new.state] > RANK[old.state]


def may_update(new: Member, old: Member) -> bool:
    """A fast check whether `new` can change anything: usually it cannot."""
    return (
        new.incarnation != old.incarnation
        or new.state is not old.state
        or new.round > old.round
        or _renewed(new, old)
    )


def merge(old: Member, new: Member) -> Member:
    """The combined belief, independent of the order of arrival; `old` itself if nothing changes. Within an
    incarnation the address and the reachability are fixed, and the state and the round only increase."""
    if new.incarnation != old.incarnation:
        return new if new.incarnation > old.incarnation else old
    if new.seal is not None:
        return _merge_signed(old, new)
    if RANK[new.state] > RANK[old.state]:
        return replace(old, state=new.state, round=max(old.round, new.round))
    if new.round > old.round:
        return replace(old, round=new.round)
    return old


def follows(new: Member, old: Member) -> bool:
    """Did the member sign the record `new` after the record `old` of the same incarnation?"""
    if new.left is not old.left:
        return new.left
    return new.round > old.round or (new.round == old.round and _renewed(new, old))


def _merge_signed(old: Member, new: Member) -> Member:
    """The later record as a whole, since a mixture of two would not match either signature."""
    state = max(old.state, new.state, key=RANK.__getitem__)
    record = new if follows(new, old) and new.address == old.address else old
    return record if record.state is state else replace(record, state=state)


def _renewed(new: Member, old: Member) -> bool:
    return new.seal is not None and (old.seal is None or new.seal.at >= old.seal.at + RENEWED)
