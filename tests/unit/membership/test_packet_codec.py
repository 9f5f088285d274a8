"""Packets as bytes."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfl_node.errors import Reason, Refused
from pfl_node.membership import membership_pb2 as pb
from pfl_node.membership.member import INCARNATION_LIMIT, Member, State
from pfl_node.membership.packet import (
    HEAD_BYTES,
    Kind,
    Packet,
    Rumor,
    member_bytes,
    rumor_bytes,
    width,
)
from pfl_node.membership.packet_codec import decode, encode, from_wire, to_wire

texts = st.text(st.characters().filter(str.isprintable), max_size=64)
labels = st.text("abcdefghijklmnopqrstuvwxyz0123456789-", min_size=1, max_size=60).map(lambda label: f"x{label}")
names = st.lists(labels, min_size=1, max_size=4).map(".".join)
addresses = st.builds("{}:{}".format, names | st.sampled_from(["10.0.0.1", "[::1]"]), st.integers(1, 65535))
members = st.builds(
    Member,
    id=texts.filter(bool),
    name=texts,
    address=addresses,
    role=st.sampled_from(["node", "bootstrap"]),
    run=texts,
    round=st.integers(-1, (1 << 53) - 1),
    incarnation=st.integers(0, INCARNATION_LIMIT - 1),
    state=st.sampled_from(State),
)
packets = st.builds(
    Packet,
    kind=st.sampled_from(Kind),
    sender=members,
    seq=st.integers(0, 1 << 40),
    target=texts,
    target_address=st.just("") | addresses,
    rumors=st.lists(st.builds(Rumor, members, by=texts), max_size=4).map(tuple),
)


@given(packets)
def test_what_is_packed_is_unpacked_the_same(packet: Packet) -> None:
    assert decode(encode(packet)) == packet


@given(packets)
def test_a_packet_is_never_larger_than_was_reckoned(packet: Packet) -> None:
    reckoned = HEAD_BYTES + member_bytes(packet.sender) + width(packet.target) + width(packet.target_address)
    assert len(encode(packet)) <= reckoned + sum(map(rumor_bytes, packet.rumors))


@given(st.binary(max_size=300))
def test_any_bytes_are_a_packet_or_refused_as_garbage(data: bytes) -> None:
    with suppress(Refused):
        decode(data)


@given(packets, st.data())
def test_a_damaged_packet_raises_nothing_else(packet: Packet, data: st.DataObject) -> None:
    raw = bytearray(encode(packet))
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with suppress(Refused):
        decode(bytes(raw))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"id": ""}, "an id"),
        ({"id": "x" * 65}, "longer than 64"),
        ({"name": "x" * 65}, "longer than 64"),
        ({"address": ""}, "invalid address"),
        ({"address": "nowhere"}, "invalid address"),
        ({"address": "unix:/run/secret.sock:1"}, "invalid address"),
        ({"address": "/call/1"}, "invalid address"),
        ({"address": "10.0.0.1:0"}, "invalid address"),
        ({"address": "x" * 300 + ":1"}, "invalid address"),
        ({"role": "king"}, "unknown role"),
        ({"state": 17}, "unknown role or state"),
        ({"incarnation": INCARNATION_LIMIT}, "invalid incarnation"),
        ({"round": -2}, "invalid incarnation or round"),
    ],
)
def test_a_member_that_cannot_be_is_refused(changes: dict[str, object], says: str) -> None:
    wire = to_wire(Member("a", "node-a", "10.0.0.1:7000"))
    for name, value in changes.items():
        setattr(wire, name, value)
    with pytest.raises(Refused, match=says):
        from_wire(wire)


def test_a_packet_of_unknown_kind_is_refused() -> None:
    wire = pb.Packet(sender=to_wire(Member("a", "node-a", "10.0.0.1:7000")))
    with pytest.raises(Refused, match="unknown kind 0") as caught:
        decode(wire.SerializeToString())
    assert caught.value.reason is Reason.GARBAGE
