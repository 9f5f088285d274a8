from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Generator
from typing import Any

import numpy as np
import pytest

from pfl_node import steps
from pfl_node.steps import Gradient, Peers, Record, Score, Send, Sleep, Step, Train, advance, relay
from pfl_node.types import PeerId
from tests.toy import constant

KINDS = [kind for kind in vars(steps).values() if isinstance(kind, type) and issubclass(kind, Step)]


def test_awaiting_a_step_yields_the_step_itself_and_returns_the_answer() -> None:
    async def flow() -> tuple[float, tuple[PeerId, ...]]:
        return await Sleep(2.5), await Peers()

    coroutine = flow()
    assert coroutine.send(None) == Sleep(2.5)
    assert coroutine.send(17.0) == Peers()
    with pytest.raises(StopIteration) as end:
        coroutine.send(("a",))
    assert end.value.value == (17.0, ("a",))


def test_a_step_can_be_asked_again() -> None:
    async def flow() -> list[float]:
        wait = Sleep(1)
        return [await wait, await wait]

    coroutine = flow()
    assert coroutine.send(None) is coroutine.send(1)
    with pytest.raises(StopIteration) as end:
        coroutine.send(2)
    assert end.value.value == [1, 2]


def test_an_error_of_the_driver_arrives_at_the_await() -> None:
    async def flow() -> str:
        try:
            await Sleep(1)
        except TimeoutError:
            return "noticed"
        return "not noticed"

    coroutine = flow()
    coroutine.send(None)
    with pytest.raises(StopIteration) as end:
        coroutine.throw(TimeoutError())
    assert end.value.value == "noticed"


def test_advance_returns_the_next_step_and_none_at_the_end() -> None:
    async def flow() -> None:
        with contextlib.suppress(TimeoutError):
            await Sleep(1)
        assert await Peers() == ("a",)

    coroutine = flow()
    assert advance(coroutine) == Sleep(1)
    assert advance(coroutine, failure=TimeoutError()) == Peers()
    assert advance(coroutine, ("a",)) is None


def test_whatever_is_not_a_step_is_an_error_at_the_await() -> None:
    async def flow() -> None:
        await asyncio.sleep(0)

    with pytest.raises(TypeError, match="a policy awaits steps only, not None"):
        advance(flow())


def test_steps_can_pass_through_other_hands_which_change_them_answer_them_or_let_them_be() -> None:
    heard: list[Any] = []

    async def flow() -> None:
        heard.extend([await Sleep(1), await Peers(), await Score(())])

    def each(step: Step[Any]) -> Generator[Step[Any], Any, Any]:
        if isinstance(step, Score):
            return "kept"
        return (yield Sleep(2) if step == Sleep(1) else step)

    relayed = relay(flow(), each)
    assert relayed.send(None) == Sleep(2)
    assert relayed.send(5.0) == Peers()
    with pytest.raises(StopIteration):
        relayed.send(("a",))
    assert heard == [5.0, ("a",), "kept"]


def test_errors_and_the_end_pass_through_other_hands_too() -> None:
    told: list[str] = []

    async def flow() -> None:
        try:
            await Sleep(1)
        except TimeoutError:
            told.append("noticed")
        try:
            await Sleep(2)
        finally:
            told.append("closed")

    def each(step: Step[Any]) -> Generator[Step[Any], Any, Any]:
        return (yield step)

    relayed = relay(flow(), each)
    relayed.send(None)
    assert relayed.throw(TimeoutError()) == Sleep(2)
    relayed.close()
    assert told == ["noticed", "closed"]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_step_is_frozen_and_says_what_it_is(kind: type[Step[Any]]) -> None:
    assert dataclasses.is_dataclass(kind)
    assert kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert kind.__doc__
    assert not kind.__doc__.startswith(f"{kind.__name__}(")


def test_the_vocabulary_is_known_to_this_test() -> None:
    """A new step needs an answer in the driver and in the simulator."""
    assert {kind.__name__ for kind in KINDS} == {
        *("Step", "Sleep", "Peers", "Send", "Gather", "Receive", "Fetch", "Ask"),
        *("Fresh", "Lesson", "Train", "Gradient", "Score", "Average", "Predict", "Distill"),
        *("Record", "Report", "Publish", "Linger"),
    }


def test_an_event_of_a_policy_cannot_take_a_word_of_the_journal() -> None:
    with pytest.raises(ValueError, match="'round' is an event of the node itself"):
        Record("round")


def test_a_policy_never_sees_the_test_data() -> None:
    with pytest.raises(ValueError, match="on train or val, not on 'test'"):
        Score([], split="test")  # type: ignore[arg-type]


def test_numbers_without_a_layout_and_a_penalty_without_a_name_are_refused_at_once() -> None:
    model, numbers = constant(1.0), constant(1.0).vector
    given: list[tuple[str, Any]] = [
        ("the correction", {"correction": numbers}),
        ("the anchor", {"anchor": numbers}),
        ("the anchor 'average'", {"anchors": {"average": numbers}}),
    ]
    for what, options in given:
        with pytest.raises(TypeError, match=f"^{what} is a ndarray: give Model"):
            Train(model, **options)
    with pytest.raises(TypeError, match=r"^the vector 'c' is a ndarray: give Model"):
        Send((), model, vectors={"c": numbers})  # type: ignore[dict-item]

    def pull() -> None: ...

    with pytest.raises(TypeError, match=r'a penalty is given by its name: penalty=f"\{__file__\}:pull"'):
        Train(model, penalty=pull)  # type: ignore[arg-type]


def test_the_batch_of_a_gradient_is_a_whole_number() -> None:
    assert Gradient(constant(1.0), np.int64(3)).batch == 3  # type: ignore[arg-type]
    for batch in ("0", 0.5, None):
        with pytest.raises(TypeError, match=f"^a batch has a whole number, not {batch!r}$"):
            Gradient(constant(1.0), batch)  # type: ignore[arg-type]


def test_a_gradient_has_at_least_one_sample() -> None:
    with pytest.raises(ValueError, match="at least one sample, not 0"):
        Gradient(constant(1.0), samples=0)
