"""Memberships over real UDP and gRPC on localhost."""

from __future__ import annotations

import asyncio
import logging
import socket
from dataclasses import replace
from random import Random
from typing import Any, Literal

import grpc
import pytest

from pfl_node.errors import ConfigError
from pfl_node.membership import membership_pb2 as pb
from pfl_node.membership.member import State
from pfl_node.membership.member_events import Joined, JoinRefused
from pfl_node.membership.packet_codec import VERSION
from pfl_node.membership.swim_config import SwimConfig
from pfl_node.settings import MembershipSettings
from pfl_node.wire.endpoint import Endpoint
from pfl_node.wire.membership_pb2_grpc import MembershipStub
from pfl_node.wire.membership_service import attach_membership
from tests.unit.membership.local_swarm import QUICK, Place, Swarm, member, swarm


def everybody_knows(places: list[Place]) -> bool:
    return all(len(place.membership.alive(role=None)) == len(places) - 1 for place in places)


@pytest.mark.parametrize("transport", ["udp", "grpc"])
def test_nodes_join_through_a_bootstrap_see_a_death_and_a_goodbye(transport: Literal["udp", "grpc"]) -> None:
    async def scenario() -> None:
        async with swarm(replace(QUICK, transport=transport)) as group:
            boot = await group.add(member("boot", role="bootstrap", run=""))
            nodes = [await group.add(member(f"n{i}"), boot.endpoint.address) for i in range(4)]
            await group.until(lambda: everybody_knows(group.places))
            assert all(node.membership.joined for node in nodes)
            assert len(nodes[0].membership.alive()) == 3
            assert len(nodes[0].membership.alive(role=None)) == 4
            assert nodes[0].membership.alive(run="another") == ()
            assert [m.id for m in boot.membership.members()] == ["id-boot", "id-n0", "id-n1", "id-n2", "id-n3"]

            await nodes[0].crash()
            rest = [boot, *nodes[1:]]
            await group.until(lambda: all(place.state_of("id-n0") is State.DEAD for place in rest))

            await nodes[1].membership.leave()
            rest.remove(nodes[1])
            await group.until(lambda: all(place.state_of("id-n1") is State.LEFT for place in rest))
            assert len(boot.membership.alive()) == 2

    asyncio.run(scenario())


def _rounds(place: Place) -> dict[str, int]:
    return {m.id: m.round for m in place.membership.alive()}


def test_any_node_can_be_a_seed_and_tells_a_late_joiner_the_round() -> None:
    async def scenario() -> None:
        async with swarm() as group:
            first = await group.add(member("n0"))
            second = await group.add(member("n1"), first.endpoint.address)
            second.membership.set_round(17)
            first.membership.set_round(12)
            await group.until(lambda: _rounds(first) == {"id-n1": 17})
            late = await group.add(member("n2"), first.endpoint.address)
            assert _rounds(late)["id-n0"] == 12
            late.membership.ask(["id-n1"])
            await group.until(lambda: _rounds(late) == {"id-n0": 12, "id-n1": 17})
            assert late.membership.heard() == {"id-n0", "id-n1"}

    asyncio.run(scenario())


def test_a_seed_that_is_down_is_tried_until_it_is_up() -> None:
    async def scenario() -> None:
        async with swarm() as group:
            with socket.socket() as unused:
                unused.bind(("127.0.0.1", 0))
                port = unused.getsockname()[1]
            node = await group.add(member("n0"), f"127.0.0.1:{port}")
            assert not node.membership.joined
            await group.add(member("boot"), listen=f"127.0.0.1:{port}")
            await group.until(lambda: node.membership.joined)

    asyncio.run(scenario())


def test_a_seed_whose_name_nobody_knows_does_no_harm() -> None:
    async def scenario() -> None:
        async with swarm() as group:
            node = await group.add(member("n0"), "no-such-host.invalid:7000")
            assert not node.membership.joined
            with pytest.raises(ConfigError, match="seed 'nonsense' must be HOST:PORT"):
                await group.add(member("n1"), "nonsense")

    asyncio.run(scenario())


def test_a_second_node_with_the_id_of_a_living_one_is_refused() -> None:
    async def scenario() -> None:
        async with swarm() as group:
            boot = await group.add(member("boot"))
            first = await group.add(member("n0"), boot.endpoint.address)
            copy = replace(member("n0"), incarnation=9)
            says = f"the id id-n0 is in use by n0 at {first.endpoint.address}, which answers"
            with pytest.raises(ConfigError, match=says):
                await group.add(copy, boot.endpoint.address)
            assert [event.reason for event in group.events if isinstance(event, JoinRefused)]
            with pytest.raises(ConfigError, match="the id id-boot is in use by boot"):
                await group.add(member("boot"), boot.endpoint.address)
            assert first.endpoint.address in {m.address for m in boot.membership.alive()}

    asyncio.run(scenario())


def test_a_node_that_was_killed_comes_back_elsewhere_under_its_id() -> None:
    async def scenario() -> None:
        async with swarm() as group:
            boot = await group.add(member("boot"))
            other = await group.add(member("n1"), boot.endpoint.address)
            first = await group.add(member("n0"), boot.endpoint.address)
            await group.until(lambda: everybody_knows(group.places))
            await first.crash()
            again = await group.add(replace(member("n0"), incarnation=2), boot.endpoint.address)
            where = again.endpoint.address
            await group.until(lambda: where in {m.address for m in other.membership.alive()})
            assert again.membership.joined

    asyncio.run(scenario())


def test_a_node_may_name_itself_among_the_seeds() -> None:
    async def scenario() -> None:
        async with swarm() as group:
            first = await group.prepare(member("n0"))
            await first.membership.start([first.endpoint.address], advertise=first.endpoint.address)
            assert first.membership.joined
            second = await group.prepare(member("n1"))
            alias = f"localhost:{second.endpoint.port}"
            await second.membership.start([alias, first.endpoint.address], advertise=second.endpoint.address)
            await group.until(lambda: second.membership.joined)

    asyncio.run(scenario())


def test_names_are_looked_up() -> None:
    async def scenario() -> None:
        async with swarm() as group:
            places = [await group.prepare(member(f"n{i}")) for i in range(3)]
            names = [f"localhost:{place.endpoint.port}" for place in places]
            for place, name in zip(places, names, strict=True):
                await place.membership.start(names[:1], advertise=name)
            await group.until(lambda: everybody_knows(places))
            assert {m.address for m in places[0].membership.members()} == set(names)
            await places[2].crash()
            await group.until(lambda: all(p.state_of("id-n2") is State.DEAD for p in places[:2]))

    asyncio.run(scenario())


def test_garbage_is_counted_and_ignored() -> None:
    async def scenario() -> None:
        async with swarm() as group:
            place = await group.add(member("n0"))
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
                for data in (b"", b"hello", bytes(1400), b"\xff" * 60_000):
                    stranger.sendto(data, ("127.0.0.1", place.endpoint.port))
            await group.until(lambda: place.membership.counters["garbage"] == 4)
            other = await group.add(member("n1"), place.endpoint.address)
            await group.until(lambda: everybody_knows([place, other]))

    asyncio.run(scenario())


def test_calls_that_make_no_sense_have_a_precise_status() -> None:
    async def scenario() -> None:
        async with swarm() as group:
            place = await group.add(member("n0"))
            good: dict[str, Any] = {"id": "x", "name": "x", "address": "127.0.0.1:1", "role": "node"}
            async with grpc.aio.insecure_channel(place.endpoint.address) as channel:
                stub = MembershipStub(channel)
                mine = pb.Member(**{**good, "id": "id-n0"})
                for call, request, code in (
                    (stub.Join, pb.JoinRequest(), "INVALID_ARGUMENT"),
                    (stub.Join, pb.JoinRequest(member=pb.Member(**{**good, "role": "king"})), "INVALID_ARGUMENT"),
                    (stub.Join, pb.JoinRequest(member=mine), "ALREADY_EXISTS"),
                    (stub.Ping, pb.Packet(), "INVALID_ARGUMENT"),
                    (stub.Ping, pb.Packet(kind=pb.Packet.PING, sender=mine, version=VERSION), "UNAVAILABLE"),
                    (stub.Ping, pb.Packet(kind=pb.Packet.PING, sender=mine), "UNIMPLEMENTED"),
                    (stub.Sync, pb.State(), "INVALID_ARGUMENT"),
                    (stub.Sync, pb.State(sender=mine), "FAILED_PRECONDITION"),
                    (stub.Sync, pb.State(sender=pb.Member(**good), members=[pb.Member()]), "INVALID_ARGUMENT"),
                    (stub.Leave, pb.LeaveRequest(member=pb.Member(**good)), "INVALID_ARGUMENT"),
                ):
                    with pytest.raises(grpc.aio.AioRpcError) as caught:
                        await call(request, timeout=5)
                    assert caught.value.code().name == code
            assert place.membership.counters["garbage"] == 5
            assert len(place.membership.members()) == 1

    asyncio.run(scenario())


def test_before_its_start_a_node_lists_itself_and_lets_nobody_in() -> None:
    async def scenario() -> None:
        async with swarm() as group:
            place = await group.prepare(member("n0"))
            async with grpc.aio.insecure_channel(place.endpoint.address) as channel:
                stub = MembershipStub(channel)
                listed = await stub.List(pb.ListRequest(), timeout=5)
                assert (listed.self, [m.id for m in listed.members]) == ("id-n0", ["id-n0"])
                wire = pb.Member(id="x", name="x", address="127.0.0.1:1", role="node")
                with pytest.raises(grpc.aio.AioRpcError, match="still starting"):
                    await stub.Join(pb.JoinRequest(member=wire), timeout=5)

    asyncio.run(scenario())


def test_udp_uses_the_port_number_of_grpc_and_reports_one_that_is_taken() -> None:
    async def scenario() -> None:
        endpoint = Endpoint()
        membership = attach_membership(endpoint, member("n0"), QUICK, rng=Random(0))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
            other.bind(("127.0.0.1", 0))
            port = other.getsockname()[1]
            with pytest.raises(ConfigError, match=f"^cannot listen on 127.0.0.1:{port}: port {port} is in use"):
                await endpoint.bind(f"127.0.0.1:{port}", membership.bind)
        assert await endpoint.bind(f"127.0.0.1:{port}", membership.bind) == port
        await membership.start((), advertise=endpoint.address)
        assert membership.joined
        await membership.close()
        await endpoint.stop()

    asyncio.run(scenario())


def test_a_listener_that_fails_does_not_stop_the_membership(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with swarm() as group:
            first = await group.add(member("n0"))

            def fail(event: object) -> None:
                group.notifier.set()
                raise RuntimeError("listener")

            first.membership._on_event = fail
            second = await group.add(member("n1"), first.endpoint.address)
            await group.until(lambda: everybody_knows([first, second]))

    with caplog.at_level(logging.ERROR):
        asyncio.run(scenario())
    assert "a listener of membership events failed" in caplog.text


def test_it_works_on_ipv6() -> None:
    async def scenario(group: Swarm) -> None:
        first = await group.add(member("n0"), listen="[::1]:0")
        second = await group.add(member("n1"), first.endpoint.address, listen="[::1]:0")
        await group.until(lambda: everybody_knows([first, second]))
        await second.crash()
        await group.until(lambda: first.state_of("id-n1") is State.DEAD)

    async def run() -> None:
        async with swarm() as group:
            await scenario(group)

    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    asyncio.run(run())


def test_starting_without_a_bound_udp_port_is_a_programming_error() -> None:
    async def scenario() -> None:
        membership = attach_membership(Endpoint(), member("n0"), QUICK, rng=Random(0))
        with pytest.raises(RuntimeError, match="bind"):
            await membership.start((), advertise="127.0.0.1:1")

    asyncio.run(scenario())


def test_the_settings_of_the_daemon_are_the_knobs_of_the_machine() -> None:
    settings = MembershipSettings(probe_interval=0.3)
    config = SwimConfig.of(settings)
    assert config == SwimConfig(probe_interval=0.3)
    for name, value in settings.model_dump(exclude={"transport"}).items():
        assert getattr(config, name) == value
    assert SwimConfig.of(MembershipSettings()) == SwimConfig()


def test_events_carry_the_member() -> None:
    async def scenario() -> None:
        async with swarm() as group:
            first = await group.add(member("n0"))
            await group.add(member("n1", run="mnist"), first.endpoint.address)
            await group.until(lambda: len(group.events) >= 2)
            assert {(e.member.id, e.member.run) for e in group.events if isinstance(e, Joined)} == {
                ("id-n0", "default"),
                ("id-n1", "mnist"),
            }

    asyncio.run(scenario())
