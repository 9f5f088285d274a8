"""Outputs of the SWIM state machine: events for the application, and actions for its runtime."""

from __future__ import annotations

from dataclasses import dataclass

from pfl_node.membership.member import Member
from pfl_node.membership.packet import Packet, Rumor


@dataclass(frozen=True)
class MemberEvent:
    member: Member


class Joined(MemberEvent):
    """A new member, or one that was dead or had left."""


class Suspected(MemberEvent):
    """A member that did not answer; it may refute the suspicion."""


class Died(MemberEvent):
    """A suspected member that did not refute in time."""


class Left(MemberEvent):
    """A member that announced its departure."""


class Changed(MemberEvent):
    """A new address, name, role or run; a refuted suspicion; or a new incarnation of this member, to be stored.

    A new round alone is not an event.
    """


class Clashed(MemberEvent):
    """Another member, at the address of the event, uses this member's id."""


@dataclass(frozen=True)
class Forged(MemberEvent):
    """A record that its member did not sign."""

    by: str  # the id of the member that sent it


@dataclass(frozen=True)
class JoinRefused(MemberEvent):
    reason: str  # for the user


@dataclass(frozen=True, slots=True)
class Sync:
    """Exchange the full member lists with this address."""

    address: str


@dataclass(frozen=True, slots=True)
class PingCall:
    """Send this ping as a call, because UDP may be blocked, and pass the answer to `Swim.receive`."""

    address: str
    packet: Packet


@dataclass(frozen=True, slots=True)
class FetchCredentials:
    """Ask this address for the credentials of the rumours' members, then pass the rumours to `Swim.learn`."""

    address: str
    by: str
    rumors: tuple[Rumor, ...]


Action = Sync | PingCall | FetchCredentials
