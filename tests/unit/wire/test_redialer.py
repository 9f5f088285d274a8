"""Peers that could not be dialled are dialled in the background until they can be."""

from __future__ import annotations

import asyncio
from random import Random

from pfl_node.errors import PeerGone
from pfl_node.settings import WireSettings
from pfl_node.types import PeerId
from pfl_node.wire.client import PeerClient
from pfl_node.wire.dials import Dials
from pfl_node.wire.endpoint import Endpoint
from pfl_node.wire.redialer import Redialer
from tests.unit.membership.local_swarm import until

BOB, PLACE = PeerId("bob"), "10.0.0.1:7000"


def test_a_peer_is_dialled_until_it_answers_and_then_left_alone() -> None:
    async def scenario() -> None:
        dials, attempts = Dials(Random(1)), []

        async def dial(peer: PeerId, address: str) -> None:
            now = asyncio.get_running_loop().time()
            attempts.append(address)
            if len(attempts) < 3:
                dials.failed(peer, address, "no answer", now)
                dials._of[peer].next = now  # the test does not wait
                raise PeerGone(peer, "no answer")
            dials.succeeded(peer, address, now)

        def reached() -> bool:
            return dials.includes(BOB, PLACE, unreachable=True)

        redialer = Redialer(dials, lambda: {} if reached() else {BOB: PLACE}, dial)
        redialer.start()
        await until(reached)
        await redialer.close()
        assert attempts == [PLACE] * 3

    asyncio.run(scenario())


def test_a_call_to_a_peer_that_cannot_be_dialled_fails_at_once_until_a_dial_succeeds() -> None:
    async def scenario() -> None:
        endpoint = Endpoint()
        await endpoint.bind("127.0.0.1:0")
        client = PeerClient(PeerId("ann"), "r", WireSettings())
        attempts = []
        for _ in range(2):  # the port is bound, but nothing listens
            try:
                await client.look(BOB, endpoint.address, after=0, timeout=5)
            except PeerGone as gone:
                attempts.append(gone.text)
                client.dials._of[BOB].next += 3600  # however slow this machine is
        assert "dialled 1 times, again in" in attempts[1]
        assert "dialled" not in attempts[0]
        await endpoint.start()
        await client.connect(BOB, endpoint.address)
        record = client.dials.of(BOB, endpoint.address)
        assert record is not None
        assert record.reached
        await client.close()
        await endpoint.stop(0)

    asyncio.run(scenario())
