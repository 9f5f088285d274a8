"""`notify` wakes the tasks that wait for a topic, and no task that starts to wait later."""

from __future__ import annotations

import asyncio

from pfl_node.node.notifier import Notifier


def test_a_ring_wakes_all_that_wait() -> None:
    async def go() -> list[bool]:
        notifier = Notifier()
        waiting = [asyncio.create_task(notifier.wait(None, "rounds")) for _ in range(3)]
        await asyncio.sleep(0)
        notifier.notify("rounds")
        return await asyncio.gather(*waiting)

    assert asyncio.run(go()) == [True, True, True]


def test_a_ring_of_the_past_is_not_heard() -> None:
    async def go() -> bool:
        notifier = Notifier()
        notifier.notify("rounds")
        return await notifier.wait(0.0, "rounds")

    assert not asyncio.run(go())


def test_a_ring_between_two_waits_is_the_second_ones_only_if_it_waits() -> None:
    async def go() -> tuple[bool, bool]:
        notifier = Notifier()
        first = asyncio.create_task(notifier.wait(None, "rounds"))
        await asyncio.sleep(0)
        notifier.notify("rounds")
        notifier.notify("rounds")  # no task waits again yet
        return await first, await notifier.wait(0.0, "rounds")

    assert asyncio.run(go()) == (True, False)


def test_the_time_ends_a_wait() -> None:
    assert asyncio.run(Notifier().wait(0.001, "rounds")) is False


def test_a_wait_can_be_cancelled_and_the_notifier_goes_on() -> None:
    async def go() -> bool:
        notifier = Notifier()
        given_up = asyncio.create_task(notifier.wait(None, "rounds"))
        other = asyncio.create_task(notifier.wait(None, "rounds"))
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.sleep(0)
        notifier.notify("rounds")
        assert given_up.cancelled()
        return await other

    assert asyncio.run(go())


def test_a_change_wakes_only_those_who_wait_for_its_topic() -> None:
    async def go() -> tuple[bool, bool]:
        notifier = Notifier()
        both = asyncio.create_task(notifier.wait(None, "rounds", "members"))
        inbox = asyncio.create_task(notifier.wait(0.001, "inbox"))
        await asyncio.sleep(0)
        notifier.notify("members")
        return await both, await inbox

    assert asyncio.run(go()) == (True, False)
