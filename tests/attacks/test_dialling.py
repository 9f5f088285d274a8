"""A member that lets others dial for it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from pfl_node.errors import Reason, Refused
from pfl_node.wire.dial_back import PER_CALLER
from tests.attacks.conftest import Figure
from tests.unit.membership.local_swarm import member, swarm

CALLS = 300


def test_dial_back_opens_few_connections_to_a_third_party_and_no_answer_counts(figure: Figure) -> None:
    """The worst case: the victim is on the machine of the attacker, so that its address is permitted."""

    async def scenario() -> int:
        opened = 0

        async def victim(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal opened
            opened += 1
            writer.close()

        server = await asyncio.start_server(victim, "127.0.0.1", 0)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with swarm() as group:
            ann = await group.add(member("ann"))
            eve = await group.add(member("eve"), ann.endpoint.address)
            lie = replace(eve.membership.me, address=address)
            for _ in range(PER_CALLER):
                assert not (await eve.membership.dial_back(ann.endpoint.address, lie)).reached
            for _ in range(CALLS - PER_CALLER):
                with pytest.raises(Refused) as refused:
                    await eve.membership.dial_back(ann.endpoint.address, lie)
                assert refused.value.reason is Reason.FLOOD
            assert ann.membership.get(eve.id) is not None
        server.close()
        await server.wait_closed()
        return opened

    opened = asyncio.run(scenario())
    assert 0 < opened <= 3 * PER_CALLER  # one to look, and gRPC tries again
    figure(f"{CALLS} calls of DialBack with another's address", "no such call", f"{opened} connections a minute")


@pytest.mark.parametrize("host", ["203.0.113.9", "10.1.2.3"])
def test_another_host_is_never_dialled_for_a_stranger(host: str) -> None:
    async def scenario() -> str:
        async with swarm() as group:
            ann = await group.add(member("ann"))
            eve = await group.add(member("eve"), ann.endpoint.address)
            lie = replace(eve.membership.me, address=f"{host}:22")
            return (await eve.membership.dial_back(ann.endpoint.address, lie)).reason

    assert asyncio.run(scenario()) == f"your calls come from 127.0.0.1, and no member answers at {host}:22"
