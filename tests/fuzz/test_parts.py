"""The fuzzer itself: it repeats what it did, leads nobody astray, knows what nobody told it, finds what is bad."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from random import Random
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool

from pfl_node.membership import membership_pb2 as pb
from pfl_node.wire import peer_pb2
from pfl_node.wire.endpoint import Endpoint
from tests.fuzz import sender as sending
from tests.fuzz.address_filter import AddressFilter, leads_somewhere
from tests.fuzz.cases import WEIGHTS, Case, CaseGenerator
from tests.fuzz.corpus import Corpus, unbraided
from tests.fuzz.findings import Findings, read, written
from tests.fuzz.grammar import Grammar, walk
from tests.fuzz.sender import Sender
from tests.fuzz.surface import Call, Surface, surface_of
from tests.fuzz.target_swarm import complaints

MINE = "127.0.0.1:7000"
MEMBER = pb.Member(id="ann", address=MINE, role="node", run="run", incarnation=1)
CALLS = tuple(
    Call(f"/{service.full_name}/{m.name}", m.input_type, m.client_streaming, m.server_streaming)
    for file in (pb, peer_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for m in service.methods
)


def generator(seed: int = 0) -> CaseGenerator:
    corpus = Corpus(Surface(CALLS, pb.Packet.DESCRIPTOR))
    packet = pb.Packet(kind=pb.Packet.PING, sequence=1, sender=MEMBER, target="bob")
    corpus.add(packet.DESCRIPTOR, (packet.SerializeToString(),))
    corpus.add(pb.JoinRequest.DESCRIPTOR, (pb.JoinRequest(member=MEMBER).SerializeToString(),))
    return CaseGenerator(seed, corpus, AddressFilter([MINE]), MINE)


def test_the_seed_and_the_number_decide_a_message() -> None:
    one, same, other = generator(), generator(), generator(seed=1)
    assert [one.case(n) for n in range(300)] == [same.case(n) for n in reversed(range(300))][::-1]
    assert [one.case(n) for n in range(50)] != [other.case(n) for n in range(50)]


def test_every_call_and_every_kind_gets_its_share() -> None:
    cases = [generator().case(n) for n in range(1500)]
    assert {case.path for case in cases} >= {call.path for call in CALLS}
    assert Counter(case.kind for case in cases).keys() == WEIGHTS.keys()


def test_a_call_and_a_field_that_nobody_told_of_are_fuzzed() -> None:
    file = FileDescriptorProto(name="new.proto", package="new", syntax="proto3")
    wish = file.message_type.add(name="Wish")
    kinds = {"amount": FieldDescriptorProto.TYPE_UINT64, "word": FieldDescriptorProto.TYPE_STRING}
    for number, (name, kind) in enumerate(kinds.items(), start=1):
        wish.field.add(name=name, number=number, type=kind, label=FieldDescriptorProto.LABEL_REPEATED)
    pool = DescriptorPool()
    pool.Add(file)
    descriptor = pool.FindMessageTypeByName("new.Wish")
    made = [Grammar().make(descriptor, Random(n)) for n in range(40)]
    assert {field.name for message in made for field, _ in message.ListFields()} == set(kinds)


def test_no_message_leads_a_node_to_anybody_outside_its_swarm() -> None:
    filter, member = AddressFilter([MINE]), pb.Member.DESCRIPTOR
    for address in ("8.8.8.8:53", "example.org:80", "127.0.0.1:7001", "[::1]:7000", "127.66.1.1:50000"):
        data = pb.JoinRequest(member=pb.Member(id="a", address=address)).SerializeToString()
        changed = pb.JoinRequest.FromString(filter.within(data, pb.JoinRequest.DESCRIPTOR))
        assert changed.member.address != address
        assert not leads_somewhere(changed.member.address)
    kept = MEMBER.SerializeToString()
    assert filter.within(kept, member) == kept
    assert filter.within(b"\xff\xff", member) == b"\xff\xff"
    cases = generator()
    for case in map(cases.case, range(1000)):
        kind = next((call.request for call in CALLS if call.path == case.path), pb.Packet.DESCRIPTOR)
        assert all(filter.within(data, kind) == data for data in case.messages if case.way != "tcp")


def test_a_message_in_pieces_says_the_same() -> None:
    header = peer_pb2.Header(version=1, sender="ann", notes={"x": 1.0})
    whole = peer_pb2.ModelChunk(header=header, data=bytes(range(100)), trailer=peer_pb2.Trailer(checksum=7))
    pieces = unbraided(whole.DESCRIPTOR, whole.SerializeToString(), Random(3))
    parts = [peer_pb2.ModelChunk.FromString(piece) for piece in pieces]
    assert len(parts) > 3
    assert (parts[0].header, parts[-1].trailer) == (whole.header, whole.trailer)
    assert b"".join(part.data for part in parts) == whole.data


def test_words_are_learnt_where_they_are_used() -> None:
    grammar = Grammar()
    grammar.learn(pb.Packet(sender=MEMBER))
    made = grammar.make(pb.Member.DESCRIPTOR, Random(0), sound=1.0)
    assert {field.name: value for _, field, value in walk(made)}.get("run", "run") == "run"


def test_a_finding_has_the_line_that_repeats_it() -> None:
    findings = Findings(seed=7, options=" --policy gossip")
    case = Case(41, "odd", "rpc", "/a/B", (b"\x00\xff",), metadata=(("x-bin", b"\xff"), ("y", "z")))
    for _ in range(3):
        findings.add(case, sending.Answer("INTERNAL", "INTERNAL: oops"))
    (finding,) = findings.findings
    assert "python -m tests.fuzz --seed 7 --policy gossip --only 41" in finding
    assert read(finding.rsplit(" ", 1)[1]) == case
    assert read(written(case)) == case


def test_a_traceback_or_an_error_on_the_log_is_a_complaint() -> None:
    fine = '{"level": "info", "event": "round"}'
    bad = ['{"level": "error", "event": "x"}', "Traceback (most recent call last):", '{"exception": "T"}']
    assert complaints([fine, "words", *bad]) == bad


class Broken:
    """A service as it must not be: each of its calls has another fault."""

    def register(self, server: grpc.aio.Server) -> None:
        async def fails(request: bytes, context: Any) -> bytes:
            raise ValueError("a bug")

        async def hangs(request: bytes, context: Any) -> bytes:
            await asyncio.Event().wait()
            return b""

        handlers = {"Fails": fails, "Hangs": hangs}
        made = {name: grpc.unary_unary_rpc_method_handler(work) for name, work in handlers.items()}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Broken", made),))


@pytest.mark.parametrize(
    ("path", "wrong", "patience"),
    [("/Broken/Fails", "UNKNOWN", sending.LONG), ("/Broken/Hangs", "no answer within", 0.3)],
)
def test_what_must_not_be_is_found(
    path: str, wrong: str, patience: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "LONG", patience)

    async def scenario() -> sending.Answer:
        endpoint = Endpoint()
        endpoint.add("Broken", Broken().register)
        await endpoint.bind("127.0.0.1:0")
        await endpoint.start()
        try:
            async with Sender(endpoint.address) as sender:
                return await sender.send(Case(0, "made", "rpc", path, (b"",)))
        finally:
            await endpoint.stop(grace=0)

    assert wrong in asyncio.run(scenario()).wrong


def test_a_node_tells_what_it_answers_to() -> None:
    async def scenario() -> Surface:
        endpoint = Endpoint()
        endpoint.add("pfl.v2.Membership", lambda server: None)
        await endpoint.bind("127.0.0.1:0")
        await endpoint.start()
        try:
            return await asyncio.to_thread(partial(surface_of, endpoint.address))
        finally:
            await endpoint.stop(grace=0)

    told = asyncio.run(scenario())
    assert {call.name for call in told.calls} >= {"Join", "Sync", "Check", "Watch", "ServerReflectionInfo"}
    assert told.call("Watch").answers_many
    assert told.packet.full_name == "pfl.v2.Packet"
