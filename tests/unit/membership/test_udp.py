"""The resolver and UDP."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest

from pfl_node.membership.udp import Resolver, Udp


def test_numeric_addresses_need_no_lookup() -> None:
    four, six = Resolver(socket.AF_INET, lambda: 0.0), Resolver(socket.AF_INET6, lambda: 0.0)
    assert four.known("127.0.0.1:7000") == ("127.0.0.1", 7000)
    assert six.known("[::1]:7000") == ("::1", 7000, 0, 0)
    assert six.known("127.0.0.1:7000") == ("::ffff:127.0.0.1", 7000, 0, 0)
    assert four.known("[::1]:7000") is None
    assert four.known("nonsense") is None


def test_a_name_is_cached_until_it_expires_or_is_invalidated() -> None:
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


def test_an_unknown_name_has_no_address() -> None:
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
def test_the_sender_of_a_datagram_is_an_address(source: tuple[object, ...], text: str) -> None:
    senders: list[str] = []
    Udp(lambda data, sender: senders.append(sender), time.monotonic).datagram_received(b"", source)
    assert senders == [text]


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
