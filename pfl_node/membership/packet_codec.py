"""Converts members and packets to protobuf messages and back, and validates all input."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from google.protobuf.message import DecodeError

from pfl_node.address import parse_address
from pfl_node.errors import ConfigError, Reason, Refused
from pfl_node.membership import membership_pb2 as pb
from pfl_node.membership.member import (
    INCARNATION_LIMIT,
    RELAYS_LIMIT,
    Member,
    Reachability,
    Role,
    Seal,
    State,
)
from pfl_node.membership.packet import Kind, Packet, Rumor
from pfl_node.membership.signatures import CREDENTIAL_BYTES, PAIR_KEY_BYTES, SIGNATURE_BYTES
from pfl_node.printable import LONGEST

VERSION = 2  # version of the membership protocol
LONGEST_ADDRESS = 261  # characters of a DNS name and a port
ROUND_LIMIT = TIME_LIMIT = 1 << 53

TO_STATE: dict[State, Any] = {state: pb.Member.State.Value(state.name) for state in State}
FROM_STATE = {wire: state for state, wire in TO_STATE.items()}
TO_REACHABILITY: dict[Reachability, Any] = {r: pb.Member.Reachability.Value(r.name) for r in Reachability}
FROM_REACHABILITY = {wire: reachability for reachability, wire in TO_REACHABILITY.items()}
TO_KIND: dict[Kind, Any] = {kind: pb.Packet.Kind.Value(kind.name) for kind in Kind}
FROM_KIND = {wire: kind for kind, wire in TO_KIND.items()}
ROLES: dict[str, Role] = {"node": "node", "bootstrap": "bootstrap"}


@lru_cache(maxsize=8192)
def is_address(text: str) -> bool:
    """gRPC accepts more than HOST:PORT as an address, for example a Unix socket."""
    try:
        parse_address(text)
    except ConfigError:
        return False
    return len(text) <= LONGEST_ADDRESS


def to_wire(member: Member, accuser: str = "") -> pb.Member:
    wire = pb.Member(
        id=member.id,
        name=member.name,
        address=member.address,
        role=member.role,
        run=member.run,
        round=member.round,
        incarnation=member.incarnation,
        state=TO_STATE[member.state],
        accuser=accuser,
        reachability=TO_REACHABILITY[member.reachability],
        relays=member.relays,
        offers_relay=member.offers_relay,
        pair_key=member.pair_key,
    )
    if (seal := member.seal) is not None:
        wire.signature, wire.signed_at, wire.credential = seal.signature, seal.at, seal.credential
    return wire


def from_wire(wire: pb.Member) -> Member:
    """Raises Refused for an invalid member."""
    member = wire.id
    role = ROLES.get(wire.role)
    if not 0 < len(member) <= LONGEST or len(wire.name) > LONGEST or len(wire.run) > LONGEST:
        raise _garbage(f"an id, name or run that is empty or longer than {LONGEST} characters")
    if not (member + wire.name + wire.run + wire.address).isprintable():
        raise _garbage("an unprintable id, name, run or address")
    if not is_address(wire.address):
        raise _garbage(f"member {member} has an invalid address")
    if role is None or wire.state not in FROM_STATE:
        raise _garbage(f"member {member} has an unknown role or state")
    if wire.incarnation >= INCARNATION_LIMIT or not -1 <= wire.round < ROUND_LIMIT:
        raise _garbage(f"member {member} has an invalid incarnation or round")
    return Member(
        member,
        wire.name,
        wire.address,
        role,
        wire.run,
        wire.round,
        wire.incarnation,
        FROM_STATE[wire.state],
        _reachability(wire),
        _relays(wire),
        wire.offers_relay,
        _pair_key(wire),
        _seal(wire),
    )


def _reachability(wire: pb.Member) -> Reachability:
    found = FROM_REACHABILITY.get(wire.reachability)
    if found is None:
        raise _garbage(f"member {wire.id} has an unknown reachability")
    return found


def _relays(wire: pb.Member) -> tuple[str, ...]:
    relays = tuple(wire.relays[: RELAYS_LIMIT + 1])
    if len(relays) > RELAYS_LIMIT or not all(relay.isprintable() and is_address(relay) for relay in relays):
        raise _garbage(f"member {wire.id} has invalid relays, or more than {RELAYS_LIMIT}")
    return relays


def _pair_key(wire: pb.Member) -> bytes:
    if len(wire.pair_key) not in (0, PAIR_KEY_BYTES):
        raise _garbage(f"member {wire.id} has an invalid pair key")
    return wire.pair_key


def _seal(wire: pb.Member) -> Seal | None:
    if not wire.signature:
        return None
    if len(wire.signature) != SIGNATURE_BYTES or len(wire.credential) > CREDENTIAL_BYTES:
        raise _garbage(f"member {wire.id} has an invalid signature")
    if wire.signed_at >= TIME_LIMIT:
        raise _garbage(f"member {wire.id} has an invalid time of its signature")
    return Seal(wire.signed_at, wire.credential, wire.signature)


def from_wires(wires: Iterable[pb.Member]) -> list[Member]:
    return [from_wire(wire) for wire in wires]


def to_wires(members: Iterable[Member]) -> list[pb.Member]:
    return [to_wire(member) for member in members]


def pack(packet: Packet) -> pb.Packet:
    return pb.Packet(
        kind=TO_KIND[packet.kind],
        sequence=packet.seq,
        sender=to_wire(packet.sender),
        target=packet.target,
        target_address=packet.target_address,
        updates=[to_wire(rumor.member, rumor.by) for rumor in packet.rumors],
        version=VERSION,
    )


def unpack(wire: pb.Packet) -> Packet:
    kind = FROM_KIND.get(wire.kind)
    if kind is None:
        raise _garbage(f"a packet of unknown kind {wire.kind}")
    if len(wire.target) > LONGEST or (wire.target_address and not is_address(wire.target_address)):
        raise _garbage("an invalid target")
    sender = from_wire(wire.sender)
    if wire.version != VERSION:
        raise Refused(Reason.NOT_SERVED, versions_differ(wire.version or 1))
    rumors = tuple(Rumor(from_wire(update), update.accuser[:LONGEST]) for update in wire.updates)
    return Packet(kind, sender, wire.sequence, wire.target, wire.target_address, rumors)


def encode(packet: Packet) -> bytes:
    return pack(packet).SerializeToString()


def decode(data: bytes) -> Packet:
    """Raises Refused for an invalid packet."""
    try:
        wire = pb.Packet.FromString(data)
    except DecodeError as error:
        raise _garbage("not a packet") from error
    return unpack(wire)


def versions_differ(theirs: int, mine: int = VERSION) -> str:
    return (
        f"it speaks membership protocol {theirs}, this node {mine}: run the same version of pfl-node on all nodes"
    )


def _garbage(text: str) -> Refused:
    return Refused(Reason.GARBAGE, text)
