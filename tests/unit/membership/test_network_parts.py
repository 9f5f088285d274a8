"""Names, datagrams and channels."""

from __future__ import annotations

import asyncio
import socket
import time

import grpc
import pytest

from pfl_node.errors import PeerGone
from pfl_node.membership import membership_pb2 as pb
from pfl_node.membership.resolver import Resolver, written
from pfl_node.membership.udp import Udp
from pfl_node.types import PeerId
from pfl_node.wire.dialer import Dialer, Link
from pfl_node.wire.endpoint import Endpoint
from pfl_node.wire.membership_channels import MembershipChannels
from tests.unit.membership.local_swarm import until


def test_numbers_need_no_lookup() -> None:
    four, six = Resolver(socket.AF_INET, lambda: 0.0), Resolver(socket.AF_INET6, lambda: 0.0)
    assert four.known("127.0.0.1:7000") == ("127.0.0.1", 7000)
    assert six.known("[::1]:7000") == ("::1", 7000, 0, 0)
    assert six.known("127.0.0.1:7000") == ("::ffff:127.0.0.1", 7000, 0, 0)
    assert four.known("[::1]:7000") is None
    assert four.known("nonsense") is None


def test_a_name_is_kept_for_a_while_and_looked_up_again_when_in_doubt() -> None:
    now = 0.0

    async def scenario() -> None:
        nonlocal now
        resolver = Resolver(socket.AF_INET, lambda: now)
        assert resolver.known("localhost:7000") is None
        assert await resolver.find("localhost:7000") == ("127.0.0.1", 7000)
        assert resolver.known("localhost:7000") == ("127.0.0.1", 7000)
        now = 29.0
        assert resolver.known("localhost:7000") is not None
        now = 31.0
        assert resolver.known("localhost:7000") is None
        await resolver.find("localhost:7000")
        resolver.invalidate("localhost:7000")
        assert resolver.known("localhost:7000") is None

    asyncio.run(scenario())


def test_a_name_that_does_not_exist_is_nowhere() -> None:
    async def scenario() -> None:
        resolver = Resolver(socket.AF_INET, lambda: 0.0)
        assert await resolver.find("no-such-host.invalid:7000") is None
        assert await resolver.find("nonsense") is None

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (("10.0.0.1", 7), "10.0.0.1:7"),
        (("::1", 7, 0, 0), "[::1]:7"),
        (("::ffff:10.0.0.1", 7, 0, 0), "10.0.0.1:7"),
    ],
)
def test_where_a_datagram_came_from_is_written_as_an_address(source: tuple[object, ...], text: str) -> None:
    assert written(source) == text


def test_datagrams_go_to_numbers_and_names_alike() -> None:
    async def scenario() -> list[bytes]:
        got: asyncio.Queue[tuple[bytes, str]] = asyncio.Queue()
        one = Udp(lambda data, source: got.put_nowait((data, source)), time.monotonic)
        two = Udp(lambda data, source: None, time.monotonic)
        for udp in (one, two):
            udp.bind("127.0.0.1", 0)
            await udp.open()
        assert one._socket is not None
        port = one._socket.getsockname()[1]
        two.send(b"number", f"127.0.0.1:{port}")
        two.send(b"name", f"localhost:{port}")
        two.send(b"nowhere", "no-such-host.invalid:7000")
        await two.flush()
        async with asyncio.timeout(10):
            heard = [(await got.get())[0] for _ in range(2)]
        for udp in (one, two):
            udp.close()
            udp.send(b"closed", f"127.0.0.1:{port}")
        return heard

    assert set(asyncio.run(scenario())) == {b"number", b"name"}


def test_a_channel_is_used_again_and_closed_when_idle() -> None:
    async def scenario() -> None:
        endpoint = Endpoint()
        await endpoint.bind("127.0.0.1:0")
        await endpoint.start()
        channels = MembershipChannels(idle=0.05)
        stubs = []
        for _ in range(2):
            async with channels.stub(endpoint.address) as (stub, _):
                stubs.append(stub)
        assert stubs[0] is stubs[1]
        assert len(channels) == 1
        await until(lambda: not len(channels))
        await channels.close()
        await endpoint.stop(0)

    asyncio.run(scenario())


def test_a_channel_that_fails_is_not_used_again() -> None:
    async def scenario() -> None:
        channels = MembershipChannels()
        with pytest.raises(grpc.aio.AioRpcError):
            async with channels.stub("127.0.0.1:9") as (stub, _):
                await stub.List(pb.ListRequest(), timeout=5)
        assert len(channels) == 0
        await channels.close()

    asyncio.run(scenario())


class Patient(Dialer):
    """Connects when it may, and is asked as for TLS: several callers wait for one connection."""

    secure = True

    def __init__(self, *, may: bool) -> None:
        self.may = asyncio.Event()
        if may:
            self.may.set()

    async def dial(self, address: str, connect_timeout: float, expect: PeerId | None = None) -> Link:
        await self.may.wait()
        return self.plain(address, connect_timeout)


def test_a_new_line_is_not_taken_for_an_idle_one_before_it_was_used() -> None:
    async def scenario() -> None:
        channels = MembershipChannels(dialer=Patient(may=True))
        line = await channels._line("127.0.0.1:9", 1.0)
        channels._reap()
        assert len(channels) == 1
        assert not line.broken
        await channels.close()

    asyncio.run(scenario())


def test_whoever_waited_for_a_line_that_was_closed_meanwhile_is_told_so() -> None:
    async def call(channels: MembershipChannels) -> None:
        async with channels.stub("127.0.0.1:9") as (stub, _):
            await stub.List(pb.ListRequest(), timeout=5)

    async def scenario() -> None:
        dialer = Patient(may=False)
        channels = MembershipChannels(dialer=dialer)
        waiting = asyncio.create_task(call(channels))
        await until(lambda: bool(channels._dialling))
        dialled = channels._dialling["127.0.0.1:9"]
        dialled.add_done_callback(lambda done: channels._retire("127.0.0.1:9", done.result()))
        dialer.may.set()
        with pytest.raises(PeerGone, match="closed"):
            await waiting
        await channels.close()

    asyncio.run(scenario())
