"""What the machine tells its owner."""

from __future__ import annotations

from dataclasses import dataclass

from pfl_node.membership.member import Member


@dataclass(frozen=True, slots=True)
class Event:
    member: Member


class Joined(Event):
    """Somebody new, or somebody back from the dead."""

    __slots__ = ()


class Suspected(Event):
    """Did not answer; may still refute."""

    __slots__ = ()


class Died(Event):
    """Did not answer for good."""

    __slots__ = ()


class Left(Event):
    """Said goodbye."""

    __slots__ = ()


class Changed(Event):
    """Another address, name, role or run; a refuted suspicion; or my own incarnation, which my owner may keep.

    A round that goes on is no event.
    """

    __slots__ = ()


class Clashed(Event):
    """Somebody else uses my id, at the address told."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Sync:
    """A wish: exchange all that is known with this address."""

    address: str
