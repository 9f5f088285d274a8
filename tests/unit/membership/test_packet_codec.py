"""Packets as bytes."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfl_node.errors import Reason, Refused
from pfl_node.membership import membership_pb2 as pb
from pfl_node.membership.member import INCARNATION_LIMIT, RELAYS_LIMIT, Member, Reachability, Seal, State
from pfl_node.membership.packet import (
    HEAD_BYTES,
    Kind,
    Packet,
    Rumor,
    member_bytes,
    rumor_bytes,
    width,
)
from pfl_node.membership.packet_codec import decode, encode, from_wire, pack, to_wire

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
    reachability=st.sampled_from(Reachability),
    relays=st.lists(addresses, max_size=RELAYS_LIMIT).map(tuple),
    offers_relay=st.booleans(),
    pair_key=st.just(b"") | st.binary(min_size=32, max_size=32),
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
        ({"reachability": 9}, "unknown reachability"),
        ({"pair_key": b"short"}, "invalid pair key"),
    ],
)
def test_a_member_that_cannot_be_is_refused(changes: dict[str, object], says: str) -> None:
    wire = to_wire(Member("a", "node-a", "10.0.0.1:7000"))
    for name, value in changes.items():
        setattr(wire, name, value)
    with pytest.raises(Refused, match=says):
        from_wire(wire)


@pytest.mark.parametrize("relays", [["r:1"] * (RELAYS_LIMIT + 1), [""], ["r"], ["a:1,b:1"], ["a:1/c"], ["a\nb:1"]])
def test_impossible_relays_are_refused(relays: list[str]) -> None:
    wire = to_wire(Member("a", "node-a", "10.0.0.1:7000"))
    wire.relays.extend(relays)
    with pytest.raises(Refused, match="invalid relays"):
        from_wire(wire)


def test_a_packet_of_unknown_kind_is_refused() -> None:
    wire = pb.Packet(sender=to_wire(Member("a", "node-a", "10.0.0.1:7000")))
    with pytest.raises(Refused, match="unknown kind 0") as caught:
        decode(wire.SerializeToString())
    assert caught.value.reason is Reason.GARBAGE


def test_a_packet_of_another_version_is_refused_with_one_clear_line() -> None:
    wire = pack(Packet(Kind.PING, Member("a", "node-a", "10.0.0.1:7000")))
    wire.ClearField("version")
    with pytest.raises(
        Refused, match=r"it speaks membership protocol 1, this node 2: run the same version"
    ) as caught:
        decode(wire.SerializeToString())
    assert caught.value.reason is Reason.NOT_SERVED


@given(packets, st.binary(min_size=64, max_size=64), st.integers(0, (1 << 53) - 1), st.binary(max_size=8))
def test_a_signature_travels_with_its_record(packet: Packet, signature: bytes, at: int, credential: bytes) -> None:
    sealed = replace(packet.sender, seal=Seal(at, credential, signature))
    whole = replace(packet, sender=sealed, rumors=(Rumor(sealed, "x"), *packet.rumors))
    back = decode(encode(whole))
    assert back == whole
    assert back.sender.seal == back.rumors[0].member.seal == sealed.seal
    reckoned = HEAD_BYTES + member_bytes(whole.sender) + width(whole.target) + width(whole.target_address)
    assert len(encode(whole)) <= reckoned + sum(map(rumor_bytes, whole.rumors))


@pytest.mark.parametrize("changes", [{"signature": b"x"}, {"credential": b"x" * 9}, {"signed_at": 1 << 60}])
def test_an_impossible_signature_is_refused(changes: dict[str, object]) -> None:
    wire = to_wire(Member("a", "node-a", "10.0.0.1:7000", seal=Seal(1, b"x" * 8, b"y" * 64)))
    for name, value in changes.items():
        setattr(wire, name, value)
    with pytest.raises(Refused, match="invalid"):
        from_wire(wire)
