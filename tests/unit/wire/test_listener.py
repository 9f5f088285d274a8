"""Which connections the listener keeps, and what a refused caller receives."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pfl_node.errors import Reason, Refused
from pfl_node.security.goaway import refusal_frames, refusal_in
from pfl_node.wire import listener as module
from pfl_node.wire.endpoint import Endpoint, channel_options
from pfl_node.wire.listener import PER_CALLER
from pfl_node.wire.local_socket import LocalSocket
from pfl_node.wire.tls import Tls
from tests.identities import Site

Scenario = Callable[[Endpoint], Awaitable[None]]


def run(scenario: Scenario, tls: Tls | None = None) -> None:
    async def whole() -> None:
        endpoint = Endpoint(tls=tls)
        await endpoint.bind("127.0.0.1:0")
        await endpoint.start()
        try:
            await scenario(endpoint)
        finally:
            await endpoint.stop(grace=0)

    asyncio.run(whole())


async def connect(endpoint: Endpoint) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(endpoint.host, endpoint.port)


async def healthy(endpoint: Endpoint) -> bool:
    async with grpc.aio.insecure_channel(endpoint.address, options=channel_options()) as channel:
        await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=30)
    return True


def test_the_oldest_idle_connection_makes_room_for_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_UNPROVEN", 16)

    async def scenario(endpoint: Endpoint) -> None:
        first = await connect(endpoint)
        others = [await connect(endpoint) for _ in range(40)]
        assert await first[0].read() == b""
        assert await healthy(endpoint)
        assert endpoint.listener.evicted["unproven"] > 0
        for _, writer in (first, *others):
            writer.close()

    run(scenario)


def test_an_idle_connection_is_closed_after_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HANDSHAKE", 0.0)

    async def scenario(endpoint: Endpoint) -> None:
        reader, writer = await connect(endpoint)
        assert await reader.read() == b""
        writer.close()

    run(scenario)


def test_a_caller_that_connects_and_goes_is_not_a_refused_one(tmp_path: Path) -> None:
    """A member that dials back does so, and a load balancer's check."""
    tls = Site(tmp_path).tls("bob")

    async def scenario(endpoint: Endpoint) -> None:
        reader, writer = await connect(endpoint)
        writer.write_eof()
        assert await reader.read() == b""
        assert tls.auth.refused == {}
        writer.close()

    run(scenario, tls)


def test_a_connection_with_a_call_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(endpoint: Endpoint) -> None:
        async with grpc.aio.insecure_channel(endpoint.address, options=channel_options()) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            await stub.Check(health_pb2.HealthCheckRequest(), timeout=30)
            monkeypatch.setattr(module, "HANDSHAKE", -1000.0)
            endpoint.listener._sweep()
            await stub.Check(health_pb2.HealthCheckRequest(), timeout=30)
            assert endpoint.listener.evicted["too slow"] == 0

    run(scenario)


def test_too_many_open_files_close_idle_connections_and_not_the_port(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(endpoint: Endpoint) -> None:
        idle = [await connect(endpoint) for _ in range(4)]
        endpoint.listener._no_resources(OSError(24, os.strerror(24)))
        assert await idle[0][0].read() == b""
        assert await healthy(endpoint)
        for _, writer in idle:
            writer.close()

    run(scenario)


def test_one_certificate_has_a_limited_number_of_connections(tmp_path: Path) -> None:
    site = Site(tmp_path)
    friend = site.tls("friend").trust.credentials

    async def scenario(endpoint: Endpoint) -> None:
        opened = [
            await asyncio.open_connection(endpoint.host, endpoint.port, ssl=friend.context)
            for _ in range(PER_CALLER + 3)
        ]
        for reader, _ in opened[:3]:
            while await reader.read(4096):
                pass
        assert endpoint.listener.evicted["per caller"] == 3
        for _, writer in opened:
            writer.transport.abort()

    run(scenario, site.tls("seed"))


def test_a_revoked_caller_receives_the_reason_and_no_place(tmp_path: Path) -> None:
    site = Site(tmp_path)
    seed, eve = site.tls("seed"), site.tls("eve")

    async def scenario(endpoint: Endpoint) -> None:
        context = eve.trust.credentials.context
        reader, first = await asyncio.open_connection(endpoint.host, endpoint.port, ssl=context)
        assert await reader.read(9)
        site.revoke(eve.id, at="seed")
        seed.trust.refresh()
        again, second = await asyncio.open_connection(endpoint.host, endpoint.port, ssl=context)
        refused = refusal_in(await again.read())
        assert refused
        assert (refused.reason, refused.text) == (Reason.REVOKED, f"{eve.id} is revoked")
        endpoint.listener.recheck(seed._accepted)
        while await reader.read(4096):  # the open connection ends too
            pass
        for writer in (first, second):
            writer.transport.abort()

    run(scenario, seed)


def test_under_overload_an_address_begins_one_handshake_per_interval(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    site = Site(tmp_path)
    seed, ann = site.tls("seed"), site.tls("ann")
    monkeypatch.setattr(module, "INTERVAL", 3600)

    async def scenario(endpoint: Endpoint) -> None:
        listener = endpoint.listener
        listener._fair.limit = 1.0  # as under overload
        listener.busy_share = lambda: 0.0
        context = ann.trust.credentials.context
        pending = {
            asyncio.create_task(asyncio.open_connection(endpoint.host, endpoint.port, ssl=context))
            for _ in range(3)
        }
        for left in (2, 1, 0):
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            assert (len(done), len(pending)) == (1, left)
            _, writer = done.pop().result()
            writer.close()
            writer.transport.abort()
            await asyncio.sleep(0.1)  # the others send their first bytes
            assert not any(task.done() for task in pending)
            listener._measure()

    run(scenario, seed)


def test_a_refusal_travels_in_frames_of_http2() -> None:
    refused = refusal_in(refusal_frames(Refused(Reason.NOT_ALLOWED, "x is not on the allow-list")))
    assert refused
    assert (refused.reason, refused.text) == (Reason.NOT_ALLOWED, "x is not on the allow-list")
    assert refusal_in(b"\0\0\x06\x04\0\0\0\0\0\0\x03\0\0\0\x80") is None
    assert refusal_in(b"\0\0\x09\x07\0\0\0\0\0\0\0\0\0\0\0\0\x0cz nonsense") is None


def test_the_socket_of_grpc_has_no_name_that_others_could_use() -> None:
    before = set(Path(tempfile.gettempdir()).glob("pfl-*"))
    local = LocalSocket()
    directory = Path(local.address.removeprefix("unix:")).parent
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(local.address.removeprefix("unix:"))
        server.listen()
        local.seal()
        assert not directory.exists()
        name, end = local.connect()
        accepted, peer = server.accept()
        assert peer == f"\0{name}".encode()
        end.close()
        accepted.close()
    local.close()
    assert directory not in before


def test_a_long_path_for_temporary_files_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    local = LocalSocket()
    assert len(local.address) < 100
    assert list(long.iterdir()) == []
    local.close()
