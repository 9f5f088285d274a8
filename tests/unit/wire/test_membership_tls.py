"""Membership with TLS: packets are calls, and nobody speaks for another."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from pfl_node.errors import ConfigError
from pfl_node.membership import membership_pb2 as pb
from pfl_node.membership import packet_codec
from pfl_node.membership.member import Member, State
from pfl_node.membership.packet import Kind, Packet
from pfl_node.membership.swim_config import SwimConfig
from pfl_node.settings import MembershipSettings
from pfl_node.wire.membership_pb2_grpc import MembershipStub
from tests.identities import Site
from tests.unit.membership.local_swarm import until
from tests.unit.wire.tls_member import tls_member


def test_members_find_each_other_by_calls_that_prove_who_sent_them(tmp_path: Path) -> None:
    async def scenario() -> None:
        site = Site(tmp_path)
        async with (
            tls_member(site.tls("ann")) as ann,
            tls_member(site.tls("bob"), ann.me.address) as bob,
            tls_member(site.tls("carl"), ann.me.address),
        ):
            await until(lambda: len(ann.alive()) == len(bob.alive()) == 2)
            assert ann.counters["packets_in"] == 0
            assert ann.counters["calls_in"] > 0

    asyncio.run(scenario())


def test_nobody_joins_syncs_pings_or_leaves_for_another(tmp_path: Path) -> None:
    async def scenario() -> None:
        site = Site(tmp_path)
        thief, victim = site.tls("thief"), site.tls("victim")
        async with tls_member(site.tls("ann")) as ann:
            link = await thief.dialer.dial(ann.me.address, 10)
            stub: Any = MembershipStub(link.channel)
            forged = Member(victim.id, "victim", "127.0.0.1:9")
            gone = packet_codec.to_wire(Member(victim.id, "victim", "127.0.0.1:9", state=State.LEFT))
            packet = packet_codec.pack(Packet(Kind.PING, forged, 1, ann.me.id))
            for call, message in (
                (stub.Join, pb.JoinRequest(member=packet_codec.to_wire(forged))),
                (stub.Sync, pb.State(sender=packet_codec.to_wire(forged))),
                (stub.Ping, packet),
                (stub.PingReq, packet),
                (stub.Leave, pb.LeaveRequest(member=gone)),
            ):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call(message, timeout=10)
                assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
                assert f"the message says {victim.id}, TLS says {thief.id}" in (caught.value.details() or "")
            await link.channel.close()
            assert ann.alive() == ()
            assert ann.counters["impostor"] == 5

    asyncio.run(scenario())


def test_why_a_seed_refuses_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with (
            tls_member(Site(tmp_path / "ours", "our CA").tls("ann")) as ann,
            tls_member(Site(tmp_path / "theirs").tls("bob"), ann.me.address) as bob,
        ):
            assert not bob.joined
            await until(lambda: "another CA ('our CA')" in caplog.text)

    asyncio.run(scenario())
    assert caplog.text.count("cannot join through") == 1


def test_udp_does_not_work_with_tls() -> None:
    assert SwimConfig.of(MembershipSettings()).transport == "udp"
    assert SwimConfig.of(MembershipSettings(), secure=True).transport == "grpc"
    with pytest.raises(ConfigError, match="udp does not work with TLS"):
        SwimConfig.of(MembershipSettings(transport="udp"), secure=True)
