"""Connections through an HTTP proxy: models, credentials, relays behind it, and what the environment may say."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pfl_node.errors import ConfigError, PeerGone
from pfl_node.membership.swim_config import SwimConfig
from pfl_node.settings import MembershipSettings
from pfl_node.types import PeerId
from pfl_node.wire.connector import Connector, proxy_of_environment, read_proxy
from pfl_node.wire.dialer import Dialer
from tests.identities import Site
from tests.unit.wire.connect_proxy import ConnectProxy
from tests.unit.wire.relays import a_caller, a_relay, a_site
from tests.unit.wire.small_host import BOB, FakeHost, calling, layout_of, model_of, serving

LAYOUT = layout_of(1000)
MODEL = model_of(LAYOUT, seed=1)


def test_models_go_through_the_proxy_with_tls(tmp_path: Path) -> None:
    async def scenario() -> None:
        swarm = Site(tmp_path)
        bob, ann, host = swarm.tls("bob"), swarm.tls("ann"), FakeHost(LAYOUT)
        host.me = bob.id
        async with ConnectProxy() as proxy, serving(host, tls=bob) as address:
            ann.dialer.paths.connector = proxy.connector()
            async with calling(me=ann.id, dialer=ann.dialer) as client:
                await client.send(bob.id, address, MODEL)
            assert host.mailbox.held == 1
            assert proxy.targets == [address, address]  # the certificate, then the channel

    asyncio.run(scenario())


def test_models_go_through_the_proxy_without_tls(tmp_path: Path) -> None:
    async def scenario() -> None:
        host, dialer = FakeHost(LAYOUT), Dialer()
        async with ConnectProxy("ann:secret") as proxy, serving(host) as address:
            (tmp_path / "password").write_text("ann:secret\n")
            authorization = read_proxy(f"http://{proxy.address}", tmp_path / "password").authorization
            dialer.paths.connector = proxy.connector(authorization)
            async with calling(dialer=dialer) as client:
                await client.send(BOB, address, MODEL)
            assert host.mailbox.held == 1
            assert proxy.targets == [address]

    asyncio.run(scenario())


def test_a_proxy_that_wants_a_password_is_named_in_the_error(tmp_path: Path) -> None:
    async def scenario() -> None:
        swarm = Site(tmp_path)
        ann = swarm.tls("ann")
        async with ConnectProxy("ann:secret") as proxy:
            ann.dialer.paths.connector = proxy.connector()
            async with calling(me=ann.id, dialer=ann.dialer) as client:
                with pytest.raises(PeerGone, match=f"{proxy.address}.*407.*network.proxy_credentials"):
                    await client.send(PeerId("bob"), "192.0.2.1:7000", MODEL)

    asyncio.run(scenario())


def test_caller_and_site_reach_the_relay_through_their_proxies(tmp_path: Path) -> None:
    async def scenario() -> None:
        swarm = Site(tmp_path)
        tls, ann = swarm.tls("bob"), swarm.tls("ann")
        async with ConnectProxy() as proxy, a_relay(swarm.tls("relay")) as relay:
            tls.dialer.paths.connector = ann.dialer.paths.connector = proxy.connector()
            async with (
                a_site(FakeHost(LAYOUT), [relay], tls, proxy.connector()) as bob,
                a_caller(ann) as client,
            ):
                await client.send(bob.id, bob.at([relay]), MODEL)
                assert bob.host.mailbox.held == 1
            assert set(proxy.targets) == {relay.address}

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://proxy:3128", "proxy:3128"),
        ("proxy:3128", "proxy:3128"),
        ("http://192.0.2.1", "192.0.2.1:8080"),
        ("http://[2001:db8::1]:3128/", "[2001:db8::1]:3128"),
    ],
)
def test_a_proxy_is_a_host_and_a_port(url: str, address: str) -> None:
    assert read_proxy(url).address == address


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("https://proxy:1", "must be http://HOST:PORT"),
        ("http://proxy:99999", "the port must be a number"),
        ("http://", "must be http://HOST:PORT"),
        ("http://ann:secret@proxy:1", "must not contain a password"),
        ("socks5://ann:secret@proxy:1", "must be http://HOST:PORT"),
    ],
)
def test_a_bad_proxy_is_explained_without_its_password(url: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        read_proxy(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("text", ["no colon", "two\nlines:1", None])
def test_bad_credentials_are_explained_without_them(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "password"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError, match=r"network\.proxy_credentials") as caught:
        read_proxy("proxy:1", file)
    assert "colon" not in str(caught.value)


def test_the_proxy_of_the_environment_is_used_only_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://ann:secret@proxy:3128")
    monkeypatch.setenv("no_proxy", "peer.local")
    assert Connector().direct("192.0.2.1:7000")
    proxy = proxy_of_environment()
    assert proxy
    assert (proxy.address, proxy.authorization) == ("proxy:3128", "Basic YW5uOnNlY3JldA==")
    hosts = ("192.0.2.1", "peer.local", "127.0.0.1", "localhost")
    assert [Connector(proxy).direct(f"{host}:1") for host in hosts] == [False, True, True, True]


def test_an_environment_without_a_proxy_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("https_proxy", "http_proxy", "HTTPS_PROXY", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    assert proxy_of_environment() is None


def test_a_node_with_a_proxy_sends_no_datagrams() -> None:
    assert SwimConfig.of(MembershipSettings(), proxied=True).transport == "grpc"
    with pytest.raises(ConfigError, match=r"does not work with network\.proxy"):
        SwimConfig.of(MembershipSettings(transport="udp"), proxied=True)
