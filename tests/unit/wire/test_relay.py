"""Sites behind a relay, over real connections: who reaches whom, what the relay sees, and what its limits do."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from pfl_node.errors import PeerGone, Reason, Refused
from pfl_node.types import PeerId
from pfl_node.wire.connector import open_socket
from pfl_node.wire.http_connect import BEARER, SUFFIX, ConnectRefused, ConnectRequest, ask
from pfl_node.wire.relay import rendezvous
from pfl_node.wire.relay.relay_limits import RelayLimits
from tests.identities import Site
from tests.unit.wire.relays import Eavesdropper, RunningRelay, RunningSite, a_caller, a_relay, a_site
from tests.unit.wire.small_host import FakeHost, layout_of, model_of

LAYOUT = layout_of(1000)
MODEL = model_of(LAYOUT, seed=1)


@asynccontextmanager
async def relayed(
    swarm: Site, limits: RelayLimits | None = None
) -> AsyncIterator[tuple[RunningRelay, RunningSite]]:
    async with (
        a_relay(swarm.tls("relay"), limits) as relay,
        a_site(FakeHost(LAYOUT), [relay], swarm.tls("bob")) as bob,
    ):
        yield relay, bob


def test_models_go_both_ways_through_a_relay(tmp_path: Path) -> None:
    async def scenario() -> None:
        swarm = Site(tmp_path)
        async with relayed(swarm) as (relay, bob), a_caller(swarm.tls("ann")) as ann:
            await ann.send(bob.id, bob.at([relay]), MODEL)
            assert bob.host.mailbox.held == 1
            fetched = await ann.fetch(bob.id, bob.at([relay]), "model", LAYOUT)
            assert fetched.sender == bob.id
            use = relay.rendezvous.use[bob.id]
            assert use.bytes > 2 * LAYOUT.nbytes
            assert (use.opened, use.callers.total()) == (2, 1)  # one to read the certificate, one that stays

    asyncio.run(scenario())


def test_models_of_members_pass_a_relay_without_tls() -> None:
    async def scenario() -> None:
        async with (
            a_relay(members=("ann",)) as relay,
            a_site(FakeHost(LAYOUT), [relay]) as bob,
            a_caller(me=PeerId("ann")) as ann,
            a_caller(me=PeerId("eve")) as eve,
        ):
            await ann.send(bob.id, bob.at([relay]), MODEL)
            assert bob.host.mailbox.held == 1
            with pytest.raises(PeerGone):
                await eve.send(bob.id, bob.at([relay]), MODEL)
            assert relay.rendezvous.connections == 1

    asyncio.run(scenario())


@asynccontextmanager
async def with_a_liar(
    swarm: Site, honest: Sequence[RunningRelay]
) -> AsyncIterator[tuple[RunningRelay, RunningSite, RunningSite]]:
    """A relay that leads callers of bob to mallory, and the two; bob is also registered at honest relays."""
    async with (
        a_relay(swarm.tls("liar")) as liar,
        a_site(FakeHost(LAYOUT), [liar, *honest], swarm.tls("bob")) as bob,
        a_site(FakeHost(LAYOUT), [liar], swarm.tls("mallory")) as mallory,
    ):
        relay = liar.rendezvous
        arrive = relay.arrive

        def join_whoever_comes(request: ConnectRequest, connection: socket.socket) -> None:
            arrive(ConnectRequest(bob.id + SUFFIX, request.authorization), connection)

        relay.arrive = join_whoever_comes  # type: ignore[method-assign]
        relay.sites[bob.id] = relay.sites[mallory.id]
        yield liar, bob, mallory


def test_a_relay_that_leads_to_another_node_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        swarm = Site(tmp_path)
        async with with_a_liar(swarm, []) as (liar, bob, mallory), a_caller(swarm.tls("ann")) as ann:
            with pytest.raises(Refused) as caught:
                await ann.send(bob.id, bob.at([liar]), MODEL)
            assert caught.value.reason is Reason.IMPOSTOR
            assert mallory.id in caught.value.text
            assert mallory.host.admitted == bob.host.admitted == 0

    asyncio.run(scenario())


def test_an_honest_relay_is_used_instead_of_one_that_lies(tmp_path: Path) -> None:
    async def scenario() -> None:
        swarm = Site(tmp_path)
        async with (
            a_relay(swarm.tls("honest")) as honest,
            with_a_liar(swarm, [honest]) as (liar, bob, mallory),
            a_caller(swarm.tls("ann")) as ann,
        ):
            await ann.send(bob.id, bob.at([liar, honest]), MODEL)
            assert (bob.host.mailbox.held, mallory.host.admitted) == (1, 0)

    asyncio.run(scenario())


def test_a_caller_uses_the_next_relay_when_one_dies(tmp_path: Path) -> None:
    async def scenario() -> None:
        swarm = Site(tmp_path)
        async with (
            a_relay(swarm.tls("relay")) as first,
            a_relay(swarm.tls("spare")) as second,
            a_site(FakeHost(LAYOUT), [first, second], swarm.tls("bob")) as bob,
            a_caller(swarm.tls("ann")) as ann,
        ):
            both = bob.at([first, second])
            await ann.send(bob.id, both, MODEL, round=1)
            await first.kill()
            await bob.registered(1)
            with suppress(PeerGone):  # the call may use the connection that is just ending
                await ann.send(bob.id, both, MODEL, round=2)
            await ann.send(bob.id, both, MODEL, round=3)
            assert bob.host.mailbox.held >= 2
            assert second.rendezvous.use[bob.id].bytes > LAYOUT.nbytes

    asyncio.run(scenario())


def test_the_relay_sees_ciphertext_only(tmp_path: Path) -> None:
    async def scenario() -> None:
        swarm = Site(tmp_path)
        async with (
            relayed(swarm) as (relay, bob),
            Eavesdropper(relay.address) as tap,
            a_caller(swarm.tls("ann")) as ann,
        ):
            await ann.send(bob.id, f"{tap.address}/{bob.id}", MODEL)
            assert bob.host.mailbox.held == 1
            assert len(tap.seen) > LAYOUT.nbytes
            assert MODEL.vector.tobytes()[:64] not in tap.seen
            assert b"SendModel" not in tap.seen
            assert b"CONNECT " in tap.seen  # what it does see

    asyncio.run(scenario())


def test_strangers_and_revoked_members_get_no_connection(tmp_path: Path) -> None:
    async def scenario() -> None:
        swarm, other = Site(tmp_path / "ours"), Site(tmp_path / "theirs", "another CA")
        thief = swarm.tls("thief")
        async with relayed(swarm) as (relay, bob):
            swarm.revoke(thief.id, at="relay")
            assert relay.tls
            relay.tls.trust.refresh()
            for caller in (other.tls("eve"), thief):
                async with a_caller(caller) as client:
                    with pytest.raises(PeerGone, match="no relay connects"):
                        await client.send(bob.id, bob.at([relay]), MODEL)
            assert relay.rendezvous.use[bob.id].opened == 0

    asyncio.run(scenario())


def test_connections_of_a_member_that_is_revoked_end(tmp_path: Path) -> None:
    async def scenario() -> None:
        swarm = Site(tmp_path)
        async with relayed(swarm) as (relay, bob), a_caller(swarm.tls("ann")) as ann:
            await ann.send(bob.id, bob.at([relay]), MODEL)
            assert relay.rendezvous.connections == 1
            swarm.revoke(ann.me, at="relay")
            assert relay.tls
            relay.tls.trust.refresh()
            relay.endpoint.listener.recheck(relay.tls._accepted, relay.tls._permitted)
            assert relay.rendezvous.connections == 0
            assert bob.id in relay.rendezvous.sites

    asyncio.run(scenario())


@pytest.mark.parametrize("authorization", ["", BEARER + "0" * 32, "Basic abc"])
def test_a_connection_without_a_ticket_is_refused(tmp_path: Path, authorization: str) -> None:
    async def scenario() -> None:
        async with relayed(Site(tmp_path)) as (relay, bob):
            connection = await open_socket(relay.address)
            with pytest.raises(ConnectRefused, match="403"):
                await ask(connection, ConnectRequest(bob.id + SUFFIX, authorization))
            connection.close()
            assert relay.rendezvous.connections == 0

    asyncio.run(scenario())


def test_a_ticket_is_valid_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with relayed(Site(tmp_path)) as (relay, bob):
            ticket = relay.rendezvous.open("ann", bob.id)
            request = ConnectRequest(bob.id + SUFFIX, BEARER + ticket)
            first, second = await open_socket(relay.address), await open_socket(relay.address)
            await ask(first, request)
            with pytest.raises(ConnectRefused, match="403"):
                await ask(second, request)
            first.close()
            second.close()

    asyncio.run(scenario())


def test_a_site_has_at_most_its_share_of_connections(tmp_path: Path) -> None:
    async def scenario() -> None:
        limits = RelayLimits(connections=3, per_caller=2)
        async with relayed(Site(tmp_path), limits) as (relay, bob):
            for caller in ("ann", "ann", "carl"):
                relay.rendezvous.open(caller, bob.id)
            for caller in ("ann", "dora"):
                with pytest.raises(Refused, match="connections") as caught:
                    relay.rendezvous.open(caller, bob.id)
                assert caught.value.reason is Reason.FLOOD
            assert relay.rendezvous.refused == {"flood": 2}

    asyncio.run(scenario())


def test_connections_through_a_relay_use_a_part_of_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        swarm = Site(tmp_path)
        async with relayed(swarm) as (relay, bob), a_caller(swarm.tls("ann")) as ann:
            await ann.send(bob.id, bob.at([relay]), MODEL)
            monkeypatch.setattr(rendezvous, "open_files", lambda: 8)
            with pytest.raises(Refused, match="too many connections"):
                relay.rendezvous.open("carl", bob.id)

    asyncio.run(scenario())


def test_a_site_that_has_used_its_bytes_is_cut_off(tmp_path: Path) -> None:
    async def scenario() -> None:
        swarm = Site(tmp_path)
        async with (
            relayed(swarm, RelayLimits(bytes_per_day=20_000)) as (relay, bob),
            a_caller(swarm.tls("ann")) as ann,
        ):
            for round in range(20):
                with suppress(PeerGone):
                    await ann.send(bob.id, bob.at([relay]), MODEL, round=round)
            assert relay.rendezvous.use[bob.id].bytes < 10 * LAYOUT.nbytes
            with pytest.raises(Refused, match="bytes for today"):
                relay.rendezvous.open("ann", bob.id)

    asyncio.run(scenario())


def test_a_relay_serves_a_limited_number_of_sites(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with relayed(Site(tmp_path), RelayLimits(sites=1)) as (relay, bob):
            with pytest.raises(Refused, match="1 sites"):
                relay.rendezvous.register("carl")
            replaced = relay.rendezvous.register(bob.id)  # the same site again is no second one
            assert relay.rendezvous.sites[bob.id] is replaced

    asyncio.run(scenario())


def test_a_node_that_is_no_relay_answers_connect_with_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        swarm = Site(tmp_path)
        async with relayed(swarm) as (relay, _):
            relay.endpoint.listener.tunnels = None
            connection = await open_socket(relay.address)
            with pytest.raises(OSError):  # noqa: PT011
                await ask(connection, ConnectRequest("bob" + SUFFIX, BEARER + "0" * 32))
            connection.close()

    asyncio.run(scenario())
