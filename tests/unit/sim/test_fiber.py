"""A coroutine that asks and waits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pfl_node.sim.fiber import WAIT, Fiber
from pfl_node.steps import Peers, Sleep, Step


async def two_sleeps(heard: list[Any]) -> None:
    heard.append(await Sleep(1.0))
    heard.append(await Sleep(2.0))


def later(fiber: Fiber, step: Step[Any]) -> Any:
    fiber.reply()
    return WAIT


def test_it_goes_on_with_the_answer_that_came_later() -> None:
    heard, ended = list[Any](), list[bool]()
    fiber = Fiber("main", two_sleeps(heard), later, lambda: ended.append(True))
    fiber.run()
    for answer in (10, 20):
        assert fiber.pending is not None
        fiber.pending(answer)
    assert heard == [10, 20]
    assert ended == [True]


def test_answers_at_once_need_no_reply() -> None:
    heard = list[Any]()
    Fiber("main", two_sleeps(heard), lambda fiber, step: "now", lambda: None).run()
    assert heard == ["now", "now"]


def test_a_reply_works_once() -> None:
    heard = list[Any]()
    fiber = Fiber("main", two_sleeps(heard), later, lambda: None)
    fiber.run()
    first = fiber.pending
    assert first is not None
    first("answer")
    first("answer again, to a question of the past")
    assert heard == ["answer"]
    assert fiber.step == Sleep(2.0)
    fiber.stop()


def test_a_stopped_fiber_hears_nothing_more_and_cleans_up() -> None:
    closed = list[bool]()

    async def careful() -> None:
        try:
            await Peers()
        finally:
            closed.append(True)

    fiber = Fiber("main", careful(), later, lambda: None)
    fiber.run()
    reply = fiber.pending
    assert reply is not None
    fiber.stop()
    reply(())
    assert closed == [True]
    assert not reply.open


def test_a_policy_that_awaits_something_of_asyncio_is_told_so_at_its_line() -> None:
    async def impatient() -> None:
        await asyncio.sleep(0)

    with pytest.raises(TypeError, match="a policy awaits steps only, not None"):
        Fiber("main", impatient(), later, lambda: None).run()
