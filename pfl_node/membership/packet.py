"""Packets between members, as plain values; `packet_codec` serializes them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pfl_node.membership.member import Member, Reachability


class Kind(StrEnum):
    PING = "ping"
    ACK = "ack"  # the target of ping `seq` answered
    NACK = "nack"  # the target of ping-req `seq` did not answer
    PING_REQ = "ping_req"  # ping the target on behalf of the sender
    GOSSIP = "gossip"  # rumours only


@dataclass(frozen=True, slots=True)
class Rumor:
    """An update about a member; `by` is the accuser of a suspicion."""

    member: Member
    by: str = ""


@dataclass(frozen=True, slots=True)
class Packet:
    kind: Kind
    sender: Member
    seq: int = 0
    target: str = ""  # the id of the member that is pinged or answered
    target_address: str = ""
    rumors: tuple[Rumor, ...] = ()


FRAME_BYTES = 48  # upper bound of tags, lengths and numbers of a member
SEAL_BYTES = 90  # the same for a signature, its time and the hash of the credential
REACHABILITY_BYTES = 2
RELAY_BYTES = 3  # tag and length of a relay's address
OFFER_BYTES = 2
PAIR_KEY_FRAME = 3  # tag and length of a pair key
HEAD_BYTES = 32  # the same for a packet


def width(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def member_bytes(member: Member) -> int:
    """An upper bound of the serialized size."""
    strings = width(member.id) + width(member.name) + width(member.address) + width(member.run)
    if member.reachability is not Reachability.UNKNOWN or member.relays:
        strings += REACHABILITY_BYTES + sum(width(relay) + RELAY_BYTES for relay in member.relays)
    strings += OFFER_BYTES * member.offers_relay
    strings += PAIR_KEY_FRAME + len(member.pair_key) if member.pair_key else 0
    return FRAME_BYTES + strings + (SEAL_BYTES if member.seal else 0)


def rumor_bytes(rumor: Rumor) -> int:
    return member_bytes(rumor.member) + width(rumor.by)
