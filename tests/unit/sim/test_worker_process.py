"""Both ends of the pipes, with a real child process without torch."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from pfl_node.errors import ConfigError, PflError
from pfl_node.sim.worker_process import Message, WorkerProcess

ROOT = Path(__file__).parents[3]
LONG = 60.0  # seconds, on a busy machine


@pytest.fixture(autouse=True)
def the_child_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@asynccontextmanager
async def child(order: str | None) -> AsyncIterator[WorkerProcess]:
    made = await WorkerProcess.spawn("tests.unit.sim.child_process", "the child")
    try:
        if order:
            made.order(json.dumps(order))
        yield made
    finally:
        await made.close()
        assert not psutil.pid_exists(made.pid)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, LONG))


async def all_of(made: WorkerProcess) -> list[Message]:
    return [said async for said in made.messages()]


def test_what_the_child_tells_arrives_and_what_it_prints_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    async def work() -> None:
        async with child("answer") as made:
            assert not made.responded
            assert await all_of(made) == [{"event": "answer", "text": "ä\n", "number": 1}]
            assert made.responded

    run(work())
    out, err = capsys.readouterr()
    assert out == ""
    assert sorted(err.splitlines()) == ["logged", "printed by a task"]


def test_a_child_that_is_asked_to_stop_ends_in_order() -> None:
    async def work() -> None:
        async with child("wait") as made:
            heard = []
            async for said in made.messages():
                heard.append(said["event"])
                if said["event"] == "ready":
                    made.stop()
            assert heard == ["ready", "stopped"]

    run(work())


def test_a_child_that_is_stopped_before_its_order_does_nothing() -> None:
    async def work() -> None:
        async with child(None) as made:
            made.stop()
            made.order(json.dumps("answer"))
            assert await all_of(made) == []

    run(work())


def test_a_child_that_hangs_is_killed_and_that_is_no_failure() -> None:
    async def work() -> None:
        async with child("hang") as made:
            async for _ in made.messages():
                made.kill()

    run(work())


def test_closing_ends_a_child_that_nobody_heard_out() -> None:
    async def work() -> None:
        async with child("hang") as made:
            await anext(made.messages())

    run(work())


@pytest.mark.parametrize(
    ("order", "error", "text"),
    [
        ("mistake", ConfigError, "^your task$"),
        ("failure", PflError, "^our failure$"),
        ("bug", PflError, "^ZeroDivisionError: a bug$"),
        (
            "their bug",
            ConfigError,
            r"^your code failed \(child_process.py, line \d+\): ZeroDivisionError: division by zero$",
        ),
        ("exit", PflError, r"^the child \(process \d+\) exited with code 3$"),
    ],
)
def test_a_child_that_fails_is_an_error_in_one_line(order: str, error: type[PflError], text: str) -> None:
    async def work() -> None:
        async with child(order) as made:
            with pytest.raises(PflError, match=text) as raised:
                await all_of(made)
            assert type(raised.value) is error

    run(work())


def test_a_child_that_somebody_kills_is_named() -> None:
    async def work() -> None:
        async with child("hang") as made:
            psutil.Process(made.pid).kill()
            with pytest.raises(PflError, match=rf"^the child \(process {made.pid}\) was killed by SIGKILL$"):
                await all_of(made)

    run(work())
