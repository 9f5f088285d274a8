"""A node whose membership protocol is older or newer is refused with one clear line."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from pfl_node.membership import membership_pb2 as pb
from pfl_node.membership import packet_codec
from pfl_node.membership.member import Member
from pfl_node.membership.packet import Kind, Packet
from pfl_node.wire.endpoint import Endpoint
from pfl_node.wire.statuses import reason_of
from tests.identities import Site
from tests.unit.membership.local_swarm import Swarm, swarm, until
from tests.unit.membership.local_swarm import member as plain
from tests.unit.wire.tls_member import tls_member

OLD = "/pfl.v1.Membership/"
LINE = "it speaks membership protocol {}, this node {}: run the same version of pfl-node on all nodes"


def old_join(channel: Any) -> Any:
    """The bytes of version 1: the fields that both versions have in common, and no signature."""
    wire = packet_codec.to_wire(Member("old", "old", "127.0.0.1:9", incarnation=1))
    return channel.unary_unary(OLD + "Join")(pb.JoinRequest(member=wire).SerializeToString(), timeout=10)


async def refusal(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


def test_an_old_node_is_refused_and_both_sides_have_a_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        site = Site(tmp_path)
        async with tls_member(site.tls("ann")) as ann:
            link = await site.tls("old").dialer.dial(ann.me.address, 10)
            for _ in range(3):
                error = await refusal(old_join(link.channel))
                assert error.code() is grpc.StatusCode.UNIMPLEMENTED
                assert error.details() == LINE.format(2, 1)  # as the old node logs it
                assert reason_of(error) == "not_served"  # which version 1 knows, so it logs the line
            listed = await link.channel.unary_unary("/pfl.v1.Membership/List")(b"", timeout=10)
            assert [m.id for m in pb.ListReply.FromString(listed).members] == [ann.me.id]
            await link.channel.close()
            assert ann.alive() == ()
            assert ann.counters["not_served"] == 3

    asyncio.run(scenario())
    lines = [record.getMessage() for record in caplog.records if "protocol" in record.getMessage()]
    assert len(lines) == 1
    assert lines[0] == "refused Join of old (old) at 127.0.0.1:9: " + LINE.format(1, 2)


def test_an_old_seed_does_not_admit_a_new_node_which_logs_the_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        joined: list[bytes] = []

        async def accept(request: bytes, _: Any) -> bytes:
            joined.append(request)
            return b""

        def register(server: grpc.aio.Server) -> None:
            handlers = {"Join": grpc.unary_unary_rpc_method_handler(accept)}
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("pfl.v1.Membership", handlers),))

        old = Endpoint()
        old.add("pfl.v1.Membership", register)
        await old.bind("127.0.0.1:0")
        await old.start()
        try:
            async with swarm() as group:
                place = await group.add(plain("new"), old.address)
                await until(lambda: "protocol" in caplog.text)
                assert not place.membership.joined
        finally:
            await old.stop(0)
        assert joined == []

    asyncio.run(scenario())
    assert caplog.text.count(LINE.format(1, 2)) == 1


def test_packets_of_an_old_node_are_refused_with_one_line(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        group: Swarm
        async with swarm() as group:
            ann, bob = await group.add(plain("ann")), await group.add(plain("bob"))
            wire = packet_codec.pack(Packet(Kind.PING, bob.membership.me, 1, "id-ann"))
            wire.ClearField("version")
            for _ in range(3):
                bob.membership.udp.send(wire.SerializeToString(), ann.endpoint.address)
            await until(lambda: ann.membership.counters["not_served"] == 3)
            assert ann.membership.counters["garbage"] == 0
            assert ann.membership.alive() == ()

    asyncio.run(scenario())
    assert caplog.text.count(LINE.format(1, 2)) == 1
