"""DialBack: whom it dials, whom it does not, and what it answers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from pfl_node.errors import Reason, Refused
from pfl_node.membership.member import Member
from pfl_node.wire import dial_back
from pfl_node.wire.dial_back import PER_CALLER, DialBacks, NotReached
from pfl_node.wire.endpoint import Endpoint
from pfl_node.wire.membership_service import attach_membership
from pfl_node.wire.tls import Tls
from tests.identities import Site
from tests.unit.membership.local_swarm import QUICK, Place, member, swarm
from tests.unit.wire.tls_member import AUTO, tls_member


@contextmanager
def port_that_refuses() -> Iterator[str]:
    """Bound, so that nobody else takes it, but not listening."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


@asynccontextmanager
async def two() -> AsyncIterator[tuple[Place, Place]]:
    async with swarm() as group:
        ann = await group.add(member("ann"))
        yield ann, await group.add(member("bob"), ann.endpoint.address)


def test_a_member_that_listens_at_its_address_is_reached() -> None:
    async def scenario() -> None:
        async with two() as (ann, bob):
            answer = await bob.membership.dial_back(ann.endpoint.address, bob.membership.me)
            assert (answer.reached, answer.reason) == (True, "")
            assert abs(answer.clock_ahead) < 5
            assert ann.membership.counters["dial_backs_reached"] == 1

    asyncio.run(scenario())


def test_a_wrong_port_is_told_with_its_reason() -> None:
    async def scenario() -> None:
        with port_that_refuses() as nowhere:
            async with two() as (ann, bob):
                me = replace(bob.membership.me, address=nowhere)
                answer = await bob.membership.dial_back(ann.endpoint.address, me)
                assert not answer.reached
                assert "connection refused" in answer.reason

    asyncio.run(scenario())


def test_another_node_at_the_address_does_not_count() -> None:
    async def scenario() -> None:
        async with swarm() as group:
            ann = await group.add(member("ann"))
            bob, carl = [await group.add(member(name), ann.endpoint.address) for name in ("bob", "carl")]
            me = replace(bob.membership.me, address=carl.endpoint.address)
            answer = await bob.membership.dial_back(ann.endpoint.address, me)
            assert (answer.reached, answer.reason) == (False, "another node answers there")

    asyncio.run(scenario())


async def ask(caller: Member, host: str, *, tls: Tls | None = None) -> None:
    """As if the call came from `host`."""
    endpoint = Endpoint(tls=tls)
    me = Member(tls.id if tls else "me", "me", "127.0.0.1:1")
    asked = attach_membership(
        endpoint, me, AUTO if tls else QUICK, rng=Random(0), dialer=tls.dialer if tls else None
    )
    await DialBacks(asked, tls.dialer.trust if tls else None)._reach(caller, host)


@pytest.mark.parametrize("address", ["127.0.0.1:22", "[::1]:22", "0.0.0.0:22", "169.254.169.254:80"])
def test_addresses_of_this_machine_are_not_dialled_for_others(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dial_back, "_connect", _never)
    with pytest.raises(NotReached, match="not an address that other machines can dial"):
        asyncio.run(ask(Member("bob", "bob", address), "203.0.113.9", tls=Site(tmp_path).tls("ann")))


def test_without_tls_only_the_machine_that_calls_is_dialled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dial_back, "_connect", _never)
    with pytest.raises(NotReached, match=r"your calls come from 203\.0\.113\.9, and no member"):
        asyncio.run(ask(Member("bob", "bob", "10.0.0.1:22"), "203.0.113.9"))


async def _never(host: str, port: int) -> None:
    raise AssertionError(f"dialled {host}:{port}")


def test_an_address_that_never_answers_is_given_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    async def blackhole(*_: object) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(dial_back, "CONNECT_TIMEOUT", 0.01)
    monkeypatch.setattr(asyncio, "open_connection", blackhole)
    with pytest.raises(NotReached, match=r"no answer within 0\.01 s"):
        asyncio.run(dial_back._connect("10.0.0.1", 7946))


def test_a_caller_may_ask_a_few_times_a_minute() -> None:
    async def scenario() -> None:
        async with two() as (ann, bob):
            me = bob.membership.me
            for _ in range(PER_CALLER):
                assert (await bob.membership.dial_back(ann.endpoint.address, me)).reached
            with pytest.raises(Refused) as refused:
                await bob.membership.dial_back(ann.endpoint.address, me)
            assert refused.value.reason is Reason.FLOOD

    asyncio.run(scenario())


def test_with_tls_the_certificate_shows_whether_the_caller_answers(tmp_path: Path) -> None:
    async def scenario() -> None:
        site = Site(tmp_path)
        async with (
            tls_member(site.tls("ann")) as ann,
            tls_member(site.tls("bob"), ann.me.address) as bob,
        ):
            assert (await bob.dial_back(ann.me.address, bob.me)).reached
            elsewhere = await bob.dial_back(ann.me.address, replace(bob.me, address=ann.me.address))
            assert (elsewhere.reached, elsewhere.reason) == (False, "another node answers there")

    asyncio.run(scenario())


def test_with_tls_nobody_is_dialled_for_another(tmp_path: Path) -> None:
    async def scenario() -> None:
        site = Site(tmp_path)
        async with (
            tls_member(site.tls("ann")) as ann,
            tls_member(site.tls("bob"), ann.me.address) as bob,
            tls_member(site.tls("carl"), ann.me.address) as carl,
        ):
            with pytest.raises(Refused) as refused:
                await bob.dial_back(ann.me.address, carl.me)
            assert refused.value.reason is Reason.IMPOSTOR

    asyncio.run(scenario())
