"""The channel pool: reuse, idle channels, failed channels, callers that share one connection attempt."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from pfl_node.errors import PeerGone
from pfl_node.membership.member import Member
from pfl_node.types import PeerId
from pfl_node.wire.channels import ChannelPool
from pfl_node.wire.dialer import Dialer, Link
from pfl_node.wire.endpoint import Endpoint
from pfl_node.wire.membership_client import MembershipClient
from pfl_node.wire.membership_pb2_grpc import MembershipStub
from tests.unit.membership.local_swarm import until

NOWHERE = "127.0.0.1:9"


def pool_of(dialer: Dialer | None = None, idle: float | None = 12.0) -> ChannelPool[Any]:
    return ChannelPool(dialer or Dialer(), MembershipStub, idle=idle)


def test_a_channel_is_reused_and_closed_when_idle() -> None:
    async def scenario() -> None:
        endpoint = Endpoint()
        await endpoint.bind("127.0.0.1:0")
        await endpoint.start()
        pool = pool_of(idle=0.05)
        stubs = []
        for _ in range(2):
            async with pool.channel(endpoint.address) as channel:
                stubs.append(channel.stub)
        assert stubs[0] is stubs[1]
        assert len(pool) == 1
        await until(lambda: not len(pool))
        await pool.close()
        await endpoint.stop(0)

    asyncio.run(scenario())


def test_without_an_idle_time_a_channel_is_kept() -> None:
    async def scenario() -> None:
        pool = pool_of(idle=None)
        async with pool.channel(NOWHERE):
            pass
        assert pool._reaper is None
        assert len(pool) == 1
        await pool.close()
        assert len(pool) == 0

    asyncio.run(scenario())


def test_membership_does_not_reuse_a_channel_whose_call_failed() -> None:
    async def scenario() -> None:
        client = MembershipClient()
        with pytest.raises(PeerGone):
            await client.sync(NOWHERE, Member("id-a", "a", NOWHERE), [])
        assert len(client._pool) == 0
        await client.close()

    asyncio.run(scenario())


def test_a_peer_that_moved_gets_a_new_channel() -> None:
    async def scenario() -> None:
        pool, peer = pool_of(), PeerId("bob")
        async with pool.channel(NOWHERE, peer=peer) as old:
            pass
        async with pool.channel("127.0.0.1:10", peer=peer) as new:
            assert new.address == "127.0.0.1:10"
        assert old.retired
        assert len(pool) == 1
        await pool.close()

    asyncio.run(scenario())


class SlowDialer(Dialer):
    """Connects when `allowed` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.allowed = asyncio.Event()
        self.dials = 0

    async def dial(self, address: str, connect_timeout: float, expect: PeerId | None = None) -> Link:
        self.dials += 1
        await self.allowed.wait()
        return await super().dial(address, connect_timeout, expect)


def test_concurrent_callers_share_one_connection_attempt() -> None:
    async def call(pool: ChannelPool[Any]) -> object:
        async with pool.channel(NOWHERE) as channel:
            return channel

    async def scenario() -> None:
        dialer = SlowDialer()
        pool = pool_of(dialer)
        calls = [asyncio.create_task(call(pool)) for _ in range(3)]
        await until(lambda: dialer.dials > 0)
        dialer.allowed.set()
        assert len(set(await asyncio.gather(*calls))) == 1
        assert dialer.dials == 1
        await pool.close()

    asyncio.run(scenario())


def test_a_caller_waits_for_a_connection_no_longer_than_its_own_timeout() -> None:
    async def scenario() -> None:
        pool = pool_of(SlowDialer())
        with pytest.raises(PeerGone, match=r"no connection within 0\.01 s"):
            async with pool.channel(NOWHERE, timeout=0.01):
                pass
        await pool.close()

    asyncio.run(scenario())


def test_a_new_channel_does_not_count_as_idle_before_its_first_call() -> None:
    async def scenario() -> None:
        pool = pool_of()
        channel = await pool._connected(None, NOWHERE, None)
        pool._reap()
        assert len(pool) == 1
        assert not channel.retired
        await pool.close()

    asyncio.run(scenario())


def test_a_channel_closed_while_callers_waited_for_it_raises_peer_gone() -> None:
    async def call(pool: ChannelPool[Any]) -> None:
        async with pool.channel(NOWHERE):
            raise AssertionError("the channel is closed")

    async def scenario() -> None:
        dialer = SlowDialer()
        pool = pool_of(dialer)
        waiting = asyncio.create_task(call(pool))
        await until(lambda: bool(pool._dialling))
        (dialling,) = pool._dialling.values()
        dialling.add_done_callback(lambda done: pool.retire(done.result()))
        dialer.allowed.set()
        with pytest.raises(PeerGone, match="closed"):
            await waiting
        await pool.close()

    asyncio.run(scenario())


def test_a_retired_channel_lets_its_call_finish() -> None:
    async def scenario() -> None:
        pool = pool_of()
        async with pool.channel(NOWHERE) as channel:
            pool.retire(channel)
            assert len(pool) == 0
            assert not pool._closing
        assert len(pool._closing) == 1
        await pool.close()
        assert channel.link.channel.get_state() is grpc.ChannelConnectivity.SHUTDOWN

    asyncio.run(scenario())
