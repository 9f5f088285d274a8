"""The notifier: whoever waits is woken, nobody is woken by a ring of the past."""

from __future__ import annotations

import asyncio

from pfl_node.node.notifier import Notifier


def test_a_ring_wakes_all_that_wait() -> None:
    async def go() -> list[bool]:
        notifier = Notifier()
        waiting = [asyncio.create_task(notifier.wait(None)) for _ in range(3)]
        await asyncio.sleep(0)
        notifier.ring()
        return await asyncio.gather(*waiting)

    assert asyncio.run(go()) == [True, True, True]


def test_a_ring_of_the_past_is_not_heard() -> None:
    async def go() -> bool:
        notifier = Notifier()
        notifier.ring()
        return await notifier.wait(0.0)

    assert not asyncio.run(go())


def test_a_ring_between_two_waits_is_the_second_ones_only_if_it_waits() -> None:
    async def go() -> tuple[bool, bool]:
        notifier = Notifier()
        first = asyncio.create_task(notifier.wait(None))
        await asyncio.sleep(0)
        notifier.ring()
        notifier.ring()  # nobody new waits yet
        return await first, await notifier.wait(0.0)

    assert asyncio.run(go()) == (True, False)


def test_the_time_ends_a_wait() -> None:
    assert asyncio.run(Notifier().wait(0.001)) is False


def test_a_wait_can_be_cancelled_and_the_bell_goes_on() -> None:
    async def go() -> bool:
        notifier = Notifier()
        given_up = asyncio.create_task(notifier.wait(None))
        other = asyncio.create_task(notifier.wait(None))
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.sleep(0)
        notifier.ring()
        assert given_up.cancelled()
        return await other

    assert asyncio.run(go())
