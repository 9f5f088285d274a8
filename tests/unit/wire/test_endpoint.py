"""The port, its options, and what a user reads when it cannot be had."""

from __future__ import annotations

import asyncio
import logging
import socket
import subprocess
import sys
from functools import partial
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from pfl_node.address import is_loopback, join_address, parse_address
from pfl_node.errors import ConfigError
from pfl_node.membership import membership_pb2 as pb
from pfl_node.wire import membership_pb2_grpc
from pfl_node.wire.endpoint import KEEPALIVE_MS, Endpoint, channel_options, server_options
from pfl_node.wire.quirks.health import WATCHERS
from tests.fuzz import http2


class Seed(membership_pb2_grpc.MembershipServicer):
    async def List(self, request: pb.ListRequest, context: object) -> pb.ListReply:  # noqa: N802
        return pb.ListReply(self="seed")


def seed_endpoint() -> Endpoint:
    endpoint = Endpoint()
    endpoint.add(
        "pfl.v2.Membership",
        partial(membership_pb2_grpc.add_MembershipServicer_to_server, Seed()),
    )
    return endpoint


def test_any_free_port_answers_on_ipv4_and_ipv6() -> None:
    async def scenario(listen: str) -> None:
        endpoint = seed_endpoint()
        port = await endpoint.bind(listen)
        await endpoint.start()
        assert port == endpoint.port > 0
        async with grpc.aio.insecure_channel(endpoint.address, options=channel_options()) as channel:
            reply = await membership_pb2_grpc.MembershipStub(channel).List(pb.ListRequest(), timeout=5)
        assert reply.self == "seed"
        await endpoint.stop()

    for listen in ("127.0.0.1:0", "localhost:0", "[::1]:0"):
        asyncio.run(scenario(listen))


def test_a_port_in_use_is_one_line_that_names_it(capfd: pytest.CaptureFixture[str]) -> None:
    async def scenario() -> None:
        first, second = seed_endpoint(), seed_endpoint()
        port = await first.bind("127.0.0.1:0")
        await first.start()
        with pytest.raises(ConfigError, match=rf"^cannot listen on 127.0.0.1:{port}: port {port} is in use"):
            await second.bind(f"127.0.0.1:{port}")
        await first.stop()
        await second.stop()

    asyncio.run(scenario())
    assert capfd.readouterr().err == ""


def test_a_host_that_is_not_ours_is_one_line() -> None:
    async def scenario(listen: str, says: str) -> None:
        with pytest.raises(ConfigError, match=says):
            await seed_endpoint().bind(listen)

    asyncio.run(scenario("203.0.113.9:7000", "cannot listen on 203.0.113.9:7000: Cannot assign"))
    asyncio.run(scenario("no-such-host.invalid:7000", "cannot listen on no-such-host.invalid: no such host"))


def test_another_port_is_tried_when_its_number_is_taken_for_udp() -> None:
    sockets: list[socket.socket] = []
    refused: list[int] = []

    def udp(host: str, port: int) -> None:
        if not refused:
            refused.append(port)
            raise OSError("taken")
        sockets.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        sockets[-1].bind((host, port))

    async def scenario() -> None:
        endpoint = seed_endpoint()
        port = await endpoint.bind("127.0.0.1:0", also=udp)
        assert sockets[-1].getsockname() == ("127.0.0.1", port)
        await endpoint.start()
        await endpoint.stop()

    asyncio.run(scenario())
    assert len(sockets) == len(refused) == 1
    sockets[0].close()


def test_a_port_whose_udp_number_is_taken_is_in_use() -> None:
    async def scenario(port: int, udp: socket.socket) -> None:
        def bind(host: str, port: int) -> None:
            udp.bind((host, port))

        with pytest.raises(ConfigError, match=f"port {port} is in use"):
            await seed_endpoint().bind(f"127.0.0.1:{port}", also=bind)

    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as mine,
    ):
        other.bind(("127.0.0.1", 0))
        asyncio.run(scenario(other.getsockname()[1], mine))


def test_health_follows_the_node_and_reflection_lists_the_services() -> None:
    async def scenario() -> None:
        endpoint = seed_endpoint()
        await endpoint.bind("127.0.0.1:0")
        await endpoint.start()
        async with grpc.aio.insecure_channel(endpoint.address) as channel:
            check = partial(health_pb2_grpc.HealthStub(channel).Check, timeout=5)
            asked = health_pb2.HealthCheckRequest(service="pfl.v2.Membership")
            assert (await check(asked)).status == health_pb2.HealthCheckResponse.NOT_SERVING
            await endpoint.serving(True)
            assert (await check(asked)).status == health_pb2.HealthCheckResponse.SERVING
            info = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(
                iter([reflection_pb2.ServerReflectionRequest(list_services="")]), timeout=5
            )
            services = {s.name async for r in info for s in r.list_services_response.service}
            assert {"pfl.v2.Membership", "grpc.health.v1.Health"} <= services
        await endpoint.stop()

    asyncio.run(scenario())


def test_a_client_never_pings_more_often_than_the_server_allows() -> None:
    server, client = dict(server_options()), dict(channel_options())
    assert client["grpc.keepalive_time_ms"] == KEEPALIVE_MS
    assert server["grpc.http2.min_recv_ping_interval_without_data_ms"] < KEEPALIVE_MS
    assert server["grpc.max_receive_message_length"] == client["grpc.max_send_message_length"]


def test_addresses() -> None:
    assert parse_address("[::1]:7000") == ("::1", 7000)
    assert join_address("::1", 7000) == "[::1]:7000"
    assert is_loopback("127.0.0.1")
    assert not is_loopback("10.0.0.1")


def test_the_endpoint_is_light() -> None:
    code = "import sys, pfl_node.wire.endpoint; print(*sys.modules.keys() & {'numpy', 'torch', 'pydantic'})"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == ""


@pytest.mark.parametrize(
    "path",
    [
        "pfl.v2.Membership/List",
        "grpc.health.v1.Health/Check",
        "grpc.health.v1.Health/Watch",
        "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    ],
)
def test_what_generated_code_cannot_read_is_the_callers_fault(path: str, caplog: pytest.LogCaptureFixture) -> None:
    assert asyncio.run(answer_of(path, b"\xff\xff")) is grpc.StatusCode.INVALID_ARGUMENT
    assert not caplog.records


@pytest.mark.parametrize("path", ["pfl.v2.Membership/Join", "grpc.health.v1.Health/List", "pfl.v1.Other/Call"])
def test_what_nobody_wrote_is_unimplemented(path: str, caplog: pytest.LogCaptureFixture) -> None:
    assert asyncio.run(answer_of(path, b"")) is grpc.StatusCode.UNIMPLEMENTED
    assert not caplog.records


async def answer_of(path: str, message: bytes) -> grpc.StatusCode:
    endpoint = seed_endpoint()
    await endpoint.bind("127.0.0.1:0")
    await endpoint.start()
    try:
        async with grpc.aio.insecure_channel(endpoint.address, options=channel_options()) as channel:
            call: Any = channel.stream_stream(f"/{path}")  # type: ignore[call-arg]
            try:
                async for _ in call(iter([message]), timeout=30):
                    pass
            except grpc.aio.AioRpcError as error:
                return error.code()
        return grpc.StatusCode.OK
    finally:
        await endpoint.stop(grace=0)


def test_a_path_that_is_no_text_does_not_close_the_port(caplog: pytest.LogCaptureFixture) -> None:
    """gRPC's server gives up on it; the endpoint does not."""

    async def scenario() -> None:
        endpoint = seed_endpoint()
        await endpoint.bind("127.0.0.1:0")
        await endpoint.start()
        await endpoint.serving(True)
        try:
            for _ in range(2):
                await bad_path(endpoint.port)
                async with grpc.aio.insecure_channel(endpoint.address, options=channel_options()) as channel:
                    stub = membership_pb2_grpc.MembershipStub(channel)
                    reply = await stub.List(pb.ListRequest(), timeout=30, wait_for_ready=True)
                    assert reply.self == "seed"
                    health = health_pb2_grpc.HealthStub(channel)
                    found = await health.Check(health_pb2.HealthCheckRequest(), timeout=30)
                    assert found.status == health_pb2.HealthCheckResponse.SERVING
        finally:
            await endpoint.stop()

    asyncio.run(scenario())
    told = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.name for record in told] == ["pfl_node.wire.endpoint"] * 2
    assert not any(record.exc_info for record in told)


async def bad_path(port: int) -> None:
    """Such a call, and the end that it gets."""
    head = http2.head("/pfl.v", "x").replace(b"/pfl.v", b"/pf\x80\x80v")
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    first = http2.frame(http2.HEADERS, head, flags=http2.END_HEADERS | http2.END_STREAM, stream=1)
    writer.write(http2.PREFACE + http2.frame(http2.SETTINGS) + first)
    while http2.spoken(await reader.read(1 << 16)) == "nothing":
        pass
    writer.close()


def test_those_who_watch_its_health_cannot_take_all_places() -> None:
    async def scenario() -> None:
        endpoint = seed_endpoint()
        await endpoint.bind("127.0.0.1:0")
        await endpoint.start()
        ask = health_pb2.HealthCheckRequest()
        try:
            async with grpc.aio.insecure_channel(endpoint.address, options=channel_options()) as channel:
                stub = health_pb2_grpc.HealthStub(channel)
                watches = [stub.Watch(ask) for _ in range(WATCHERS)]
                for watch in watches:
                    await watch.read()
                with pytest.raises(grpc.aio.AioRpcError, match="watcher slots are in use"):
                    await stub.Watch(ask, timeout=30).read()
                watches[0].cancel()
                while not await _first(stub.Watch(ask, timeout=30)):
                    pass
        finally:
            await endpoint.stop(grace=0)

    async def _first(watch: Any) -> bool:
        try:
            return bool(await watch.read())
        except grpc.aio.AioRpcError:
            return False

    asyncio.run(scenario())
