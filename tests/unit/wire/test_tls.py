"""Both ends of the wire with TLS on localhost: who gets in, who is turned away, and what each side is told."""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pfl_node.errors import PeerGone, Reason, Refused
from pfl_node.security.tls_files import TlsFiles
from pfl_node.security.trust import Trust
from pfl_node.types import PeerId
from pfl_node.wire.client import PeerClient
from pfl_node.wire.dialer import Dialer, TlsDialer
from pfl_node.wire.tls import Tls
from tests.identities import LONG_AGO, Site, fresh_id, pinned
from tests.unit.wire.small_host import FakeHost, calling, layout_of, model_of, serving

LAYOUT = layout_of(1000)
MODEL = model_of(LAYOUT, seed=1)


@dataclass
class Call:
    """Bob serves, somebody calls him."""

    host: FakeHost
    bob: Tls
    address: str
    stack: AsyncExitStack

    async def client(self, dialer: Dialer, me: PeerId) -> PeerClient:
        return await self.stack.enter_async_context(calling(me=me, dialer=dialer))

    async def ann(self, tls: Tls) -> PeerClient:
        return await self.client(tls.dialer, tls.id)

    async def sends(self, client: PeerClient, *, to: PeerId | None = None) -> None:
        await client.send(to or self.bob.id, self.address, MODEL)

    async def refuses(self, client: PeerClient, reason: Reason, words: str, *, to: PeerId | None = None) -> None:
        """With this reason, in well under a second of work, and nothing came in."""
        started = time.process_time()
        with pytest.raises(Refused) as caught:
            await self.sends(client, to=to)
        assert (caught.value.reason, words in str(caught.value)) == (reason, True), caught.value
        assert time.process_time() - started < 1.0
        assert self.host.mailbox.held == 0


@asynccontextmanager
async def call(bob: Tls) -> AsyncIterator[Call]:
    host = FakeHost(LAYOUT)
    host.me = bob.id
    async with AsyncExitStack() as stack:
        address = await stack.enter_async_context(serving(host, tls=bob))
        yield Call(host, bob, address, stack)


def test_a_model_goes_both_ways_between_two_certificates_of_one_ca(tmp_path: Path) -> None:
    async def scenario() -> None:
        site = Site(tmp_path)
        async with call(site.tls("bob")) as it:
            ann = await it.ann(site.tls("ann"))
            await it.sends(ann)
            assert it.host.mailbox.held == 1
            fetched = await ann.fetch(it.bob.id, it.address, "model", LAYOUT)
            assert fetched.sender == it.bob.id
            assert (await ann.status(it.address)).state == "training"

    asyncio.run(scenario())


def test_pinned_ids_need_no_ca(tmp_path: Path) -> None:
    async def scenario() -> None:
        ann, bob = (fresh_id(tmp_path / name) for name in ("ann", "bob"))
        async with call(Tls(pinned(tmp_path / "bob", allow=[ann]))) as it:
            await it.sends(await it.ann(Tls(pinned(tmp_path / "ann", allow=[bob]))))
            carl = Tls(pinned(tmp_path / "carl", allow=[bob]))
            it.host.mailbox.take()
            await it.refuses(await it.ann(carl), Reason.NOT_ALLOWED, f"{carl.id} is not on the allow-list")

    asyncio.run(scenario())


def test_with_pinned_ids_another_key_at_the_address_is_not_talked_to(tmp_path: Path) -> None:
    async def scenario() -> None:
        meant = fresh_id(tmp_path / "meant")
        ann = Tls(pinned(tmp_path / "ann", allow=[meant]))
        async with call(Tls(pinned(tmp_path / "bob", allow=[ann.id]))) as it:
            client = await it.ann(ann)
            await it.refuses(client, Reason.IMPOSTOR, f"{it.bob.id} answers at", to=meant)
            assert it.host.counts == {}

    asyncio.run(scenario())


def test_without_a_certificate_nobody_gets_in(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with call(Site(tmp_path).tls("bob")) as it:
            roots = grpc.ssl_channel_credentials(it.bob.trust.credentials.chain)
            options = (("grpc.ssl_target_name_override", it.bob.id),)
            async with grpc.aio.secure_channel(it.address, roots, options=options) as channel:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE

    asyncio.run(scenario())


def test_plain_connections_reach_nothing_behind_tls(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with call(Site(tmp_path).tls("bob")) as it:
            with pytest.raises(PeerGone):
                await it.sends(await it.client(Dialer(), PeerId("ann")))
            assert it.host.counts == {}

    asyncio.run(scenario())


def test_a_plain_port_is_not_talked_to_with_tls(tmp_path: Path) -> None:
    async def scenario() -> None:
        site = Site(tmp_path)
        async with serving(FakeHost(LAYOUT)) as address, calling(dialer=site.tls("ann").dialer) as ann:
            with pytest.raises(Refused) as caught:
                await ann.send(PeerId("bob"), address, MODEL)
            assert caught.value.reason is Reason.NO_TLS
            assert "does not speak TLS" in str(caught.value)

    asyncio.run(scenario())


def test_another_ca_is_named_to_whoever_meets_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with call(Site(tmp_path / "ours", "our CA").tls("bob")) as it:
            stranger = Site(tmp_path / "theirs", "their CA").tls("ann")
            await it.refuses(await it.ann(stranger), Reason.OTHER_CA, "certificate of another CA ('our CA')")

    asyncio.run(scenario())


def test_one_who_believes_us_but_has_a_certificate_of_another_ca_is_told_so(tmp_path: Path) -> None:
    async def scenario() -> None:
        ours = Site(tmp_path / "ours")
        stranger = Site(tmp_path / "theirs", "their CA").tls("ann")
        credentials = stranger.trust.credentials
        credentials.context.load_verify_locations(cadata=ours.ca.pem.decode())
        async with call(ours.tls("bob")) as it:
            await it.refuses(await it.ann(stranger), Reason.REJECTED, "issued by 'their CA'")

    asyncio.run(scenario())


def test_one_who_is_revoked_is_refused_though_its_connection_is_open(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        site = Site(tmp_path)
        async with call(site.tls("bob")) as it:
            ann = site.tls("ann")
            client = await it.ann(ann)
            await it.sends(client)
            it.host.mailbox.take()
            site.revoke(ann.id, at="bob")
            assert it.bob.trust.refresh() == ["revoked"]
            await it.refuses(client, Reason.REVOKED, f"{ann.id} is revoked")
            assert it.bob.auth.refused == {("SendModel", "revoked"): 1}

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    assert "is revoked" in caplog.text


def test_a_revoked_peer_is_not_called_though_its_connection_is_open(tmp_path: Path) -> None:
    async def scenario() -> None:
        site = Site(tmp_path)
        async with call(site.tls("bob")) as it:
            ann = site.tls("ann")
            client = await it.ann(ann)
            await it.sends(client)
            it.host.mailbox.take()
            site.revoke(it.bob.id, at="ann")
            ann.trust.refresh()
            await it.refuses(client, Reason.REVOKED, f"{it.bob.id} is revoked")
            assert it.host.counts == {("SendModel", "ok"): 1}

    asyncio.run(scenario())


def test_the_allow_list_is_followed_as_it_changes(tmp_path: Path) -> None:
    async def scenario() -> None:
        site = Site(tmp_path)
        async with call(site.tls("bob")) as it:
            ann, carl = site.tls("ann"), site.tls("carl")
            client = await it.ann(ann)
            (tmp_path / "bob" / "allow").write_text(f"{carl.id}\n")
            it.bob.trust.refresh()
            await it.refuses(client, Reason.NOT_ALLOWED, "not on the allow-list")
            (tmp_path / "bob" / "allow").write_text(f"# ours\n{carl.id} carl\n{ann.id} ann\n")
            it.bob.trust.refresh()
            await it.sends(client)

    asyncio.run(scenario())


def test_the_sender_of_a_message_is_whom_tls_says(tmp_path: Path) -> None:
    async def scenario() -> None:
        site = Site(tmp_path)
        async with call(site.tls("bob")) as it:
            ann, carl = site.tls("ann"), site.tls("carl")
            liar = await it.client(ann.dialer, carl.id)
            await it.refuses(liar, Reason.IMPOSTOR, f"the message says {carl.id}, TLS says {ann.id}")
            with pytest.raises(Refused, match="TLS says"):
                await liar.fetch(it.bob.id, it.address, "head", LAYOUT)
            assert it.host.counts[("SendModel", "impostor")] == 1

    asyncio.run(scenario())


def test_a_certificate_with_somebody_elses_id_is_refused_though_the_ca_signed_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        site = Site(tmp_path)
        async with call(site.tls("bob")) as it:
            ann, carl = site.tls("ann"), site.member("carl")
            carls = Trust(carl).me
            site.certify("ann", like=carls)
            thief = _forced(ann, site.path / "ann")
            await it.refuses(await it.client(thief, carls), Reason.IMPOSTOR, f"the certificate says {carls}")

    asyncio.run(scenario())


def test_a_server_with_somebody_elses_id_is_not_talked_to(tmp_path: Path) -> None:
    async def scenario() -> None:
        site = Site(tmp_path)
        ann, bob, victim = site.tls("ann"), site.tls("bob"), site.tls("victim")
        site.certify("bob", like=victim.id)
        _forced(bob, site.path / "bob")
        async with call(bob) as it:
            await it.refuses(await it.ann(ann), Reason.IMPOSTOR, "answers at", to=victim.id)
            assert it.host.counts == {}

    asyncio.run(scenario())


def test_an_expired_certificate_opens_no_door(tmp_path: Path) -> None:
    async def scenario() -> None:
        site = Site(tmp_path)
        async with call(site.tls("bob")) as it:
            ann = site.tls("ann")
            site.certify("ann", start=LONG_AGO)
            late = await it.client(_forced(ann, site.path / "ann"), ann.id)
            await it.refuses(late, Reason.REJECTED, "closed the connection on seeing our certificate")

    asyncio.run(scenario())


def test_an_expired_server_is_told_apart_from_a_stranger(tmp_path: Path) -> None:
    async def scenario() -> None:
        site = Site(tmp_path)
        ann, bob = site.tls("ann"), site.tls("bob")
        site.certify("bob", start=LONG_AGO)
        _forced(bob, site.path / "bob")
        async with call(bob) as it:
            await it.refuses(await it.ann(ann), Reason.EXPIRED, "its certificate expired")

    asyncio.run(scenario())


def test_an_operator_may_look_but_not_take_part(tmp_path: Path) -> None:
    async def scenario() -> None:
        site = Site(tmp_path)
        async with call(site.tls("bob")) as it:
            operator = await it.ann(site.tls("olga", operator=True))
            assert (await operator.status(it.address)).state == "training"
            await it.refuses(operator, Reason.NOT_ALLOWED, "is an operator, which may read but not call SendModel")

    asyncio.run(scenario())


def test_new_certificates_on_both_sides_lose_no_model(tmp_path: Path) -> None:
    async def scenario() -> None:
        site = Site(tmp_path)
        async with call(site.tls("bob")) as it:
            ann = site.tls("ann")
            client = await it.ann(ann)
            sent = 0
            for tls, name in ((ann, "ann"), (it.bob, "bob"), (ann, "ann")):
                under_way = [asyncio.create_task(it.sends(client)) for _ in range(2)]
                site.member(name)
                assert "certificate" in tls.trust.refresh()
                await asyncio.gather(*under_way)
                it.host.mailbox.take(9)
                await it.sends(client)
                sent += 3
                it.host.mailbox.take()
            assert it.host.counts == {("SendModel", "ok"): sent}

    asyncio.run(scenario())


def test_a_peer_that_came_back_with_a_new_certificate_is_found_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        site = Site(tmp_path)
        ann = site.tls("ann")
        async with calling(me=ann.id, dialer=ann.dialer) as client:
            async with call(site.tls("bob")) as it:
                await it.sends(client)
            async with call(site.tls("bob")) as it:
                await it.sends(client)

    asyncio.run(scenario())


def _forced(tls: Tls, directory: Path) -> TlsDialer:
    """Shows what lies in the directory, though an honest node would not start with it."""
    credentials = tls.trust.credentials
    chain = (directory / "cert.pem").read_bytes()
    for context in (credentials.context, credentials.server):
        context.load_cert_chain(directory / "cert.pem", directory / "key.pem")
    object.__setattr__(credentials, "chain", chain)
    return tls.dialer


def test_a_directory_is_all_that_a_node_needs(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.member("ann")
    shutil.move(tmp_path / "ann", tmp_path / "moved")
    assert Tls(TlsFiles.find(tmp_path / "moved")).id == fresh_id(tmp_path / "moved")
