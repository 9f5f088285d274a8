"""What the machine tells its owner, and what it actions for."""

from __future__ import annotations

from dataclasses import dataclass

from pfl_node.membership.member import Member
from pfl_node.membership.packet import Packet


@dataclass(frozen=True, slots=True)
class MemberEvent:
    member: Member


class Joined(MemberEvent):
    """Somebody new, or somebody back from the dead."""

    __slots__ = ()


class Suspected(MemberEvent):
    """Did not answer; may still refute."""

    __slots__ = ()


class Died(MemberEvent):
    """Did not answer for good."""

    __slots__ = ()


class Left(MemberEvent):
    """Said goodbye."""

    __slots__ = ()


class Changed(MemberEvent):
    """Another address, name, role or run; a refuted suspicion; or my own incarnation, which my owner may keep.

    A round that goes on is no event.
    """

    __slots__ = ()


class Clashed(MemberEvent):
    """Somebody else uses my id, at the address told."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class JoinRefused(MemberEvent):
    """I may not join; the reason is fit to be shown to a user."""

    reason: str


@dataclass(frozen=True, slots=True)
class Sync:
    """Exchange all that is known with this address."""

    address: str


@dataclass(frozen=True, slots=True)
class PingCall:
    """Put this ping as a call, and hand its answer in as if it had come as a packet: UDP may be blocked."""

    address: str
    packet: Packet


Action = Sync | PingCall
