"""An event loop whose time is virtual."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from pfl_node.errors import SimulationStuck
from pfl_node.sim.event_loop import CLOCK, LocalTime, SkewedClock, VirtualLoop
from pfl_node.sim.faults import Skew
from tests.unit.sim.toy_swarms import A

T = TypeVar("T")


def play(work: Coroutine[Any, Any, T], loop: VirtualLoop | None = None) -> T:
    loop = loop or VirtualLoop()
    try:
        return loop.run_until_complete(work)
    finally:
        loop.cancel_tasks()
        loop.close()


def test_a_sleep_takes_no_time_and_moves_the_clock_exactly() -> None:
    async def go() -> list[float]:
        loop = asyncio.get_running_loop()
        times = []
        for seconds in (0.1, 86_400.0, 1e9):
            await asyncio.sleep(seconds)
            times.append(loop.time())
        return times

    assert play(go()) == [0.1, 86_400.1, 1_000_086_400.1]


def test_timers_of_one_moment_fire_in_the_order_in_which_they_were_set() -> None:
    async def go() -> list[int]:
        loop, fired = asyncio.get_running_loop(), list[int]()
        for n in range(50):
            loop.call_at(5.0, fired.append, n)
        await asyncio.sleep(6.0)
        return fired

    assert play(go()) == list(range(50))


def test_very_short_waits_fire_one_after_the_other_also_late_in_virtual_time() -> None:
    async def go() -> list[str]:
        loop, fired = asyncio.get_running_loop(), list[str]()
        loop.call_later(2e-7, fired.append, "later")
        loop.call_later(1e-7, fired.append, "sooner")
        await asyncio.sleep(1.0)
        return fired

    assert play(go(), VirtualLoop(1e8)) == ["sooner", "later"]


def test_a_cancelled_timer_does_not_fire_and_many_of_them_are_swept_away() -> None:
    async def go() -> tuple[list[int], int]:
        loop, fired = asyncio.get_running_loop(), list[int]()
        for n in range(5000):
            loop.call_later(10.0, fired.append, n).cancel()
        assert isinstance(loop, VirtualLoop)
        left = len(loop._timers)
        await asyncio.sleep(20.0)
        return fired, left

    fired, left = play(go())
    assert fired == []
    assert left < 2500


def test_a_timeout_ends_a_wait_at_its_time() -> None:
    async def go() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(7.0):
                await asyncio.Event().wait()
        return asyncio.get_running_loop().time()

    assert play(go()) == 7.0


def test_waiting_for_what_nobody_brings_is_an_error() -> None:
    with pytest.raises(SimulationStuck, match="nothing is left to happen"):
        play(asyncio.Event().wait())


def test_time_that_stands_still_is_an_error() -> None:
    async def spins() -> None:
        loop = asyncio.get_running_loop()
        again: asyncio.Future[None] = loop.create_future()

        def spin() -> None:
            loop.call_soon(spin)

        spin()
        await again

    with pytest.raises(SimulationStuck, match="while the time stood still"):
        play(spins(), VirtualLoop(max_spins=1000))


def test_what_would_run_in_a_thread_runs_at_once() -> None:
    async def go() -> tuple[int, float]:
        return await asyncio.to_thread(lambda: 7), asyncio.get_running_loop().time()

    assert play(go()) == (7, 0.0)


def test_the_clock_of_one_task_may_go_wrong_beside_another() -> None:
    loop = VirtualLoop()

    async def sleeps(rate: float | None) -> tuple[float, float]:
        if rate:
            CLOCK.set(SkewedClock(LocalTime([Skew(A, rate, 0.0, 0.0)]), lambda: loop.now))
        await asyncio.sleep(10.0)
        return loop.time(), loop.now

    async def go() -> list[tuple[float, float]]:
        return list(await asyncio.gather(sleeps(None), sleeps(2.0), sleeps(0.5)))

    assert play(go(), loop) == [(10.0, 10.0), (10.0, 5.0), (10.0, 20.0)]


def test_a_callback_that_fails_fails_the_run() -> None:
    loop = VirtualLoop()

    def wrong() -> None:
        raise ZeroDivisionError

    loop.call_later(3.0, wrong)
    with pytest.raises(ZeroDivisionError):
        loop.run(lambda: False)
    assert loop.now == 3.0
    loop.close()
