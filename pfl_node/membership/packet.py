"""What members say to each other, as plain values. How a packet becomes bytes is `codec.py`'s business."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pfl_node.membership.member import Member


class Kind(StrEnum):
    PING = "ping"  # are you there?
    ACK = "ack"  # the target of `seq` is there
    NACK = "nack"  # I am there, but the target of `seq` did not answer me
    PING_REQ = "ping_req"  # ping the target for me
    GOSSIP = "gossip"  # only news


@dataclass(frozen=True, slots=True)
class Rumor:
    """News about a member; `by` is who accuses when it is a suspicion."""

    member: Member
    by: str = ""


@dataclass(frozen=True, slots=True)
class Packet:
    kind: Kind
    sender: Member
    seq: int = 0
    target: str = ""  # whose id is meant: whom I ping, or who answered
    target_address: str = ""
    rumors: tuple[Rumor, ...] = ()


FRAME_BYTES = 48  # tags, lengths and numbers around one member, at most
HEAD_BYTES = 32  # the same for the packet itself


def width(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def member_bytes(member: Member) -> int:
    """An upper bound of what a member takes on the wire."""
    strings = width(member.id) + width(member.name) + width(member.address) + width(member.run)
    return FRAME_BYTES + strings


def rumor_bytes(rumor: Rumor) -> int:
    return member_bytes(rumor.member) + width(rumor.by)
