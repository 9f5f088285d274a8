"""The hub: what is kept, who is told, and what a slow watcher loses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import numpy as np
import pytest
from structlog.testing import capture_logs

from pfl_node.ops.events import KINDS, WATCHERS, Hub, TooManyWatchers


def hub(kept: int = 4) -> Hub:
    return Hub(kept, clock=lambda: 100.0)


def told(hub: Hub, kind: str, n: int) -> None:
    for i in range(n):
        hub.tell(kind, {"i": i})


def play(scene: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(30):
            await scene()

    asyncio.run(main())


def test_the_last_of_every_kind_are_kept_so_that_many_of_one_do_not_hide_another() -> None:
    made = hub()
    made.tell("died", {"peer": "ann"})
    told(made, "sent", 100)
    found = made.recent()
    assert [e.kind for e in found] == ["died", "sent", "sent", "sent", "sent"]
    assert [e.number for e in found] == [1, 98, 99, 100, 101]
    assert made.counts == {"died": 1, "sent": 100}


def test_one_asks_for_what_came_later_for_some_kinds_or_for_the_last() -> None:
    made = hub()
    told(made, "sent", 2)
    told(made, "round", 2)
    assert [e.number for e in made.recent(after=2)] == [3, 4]
    assert [e.number for e in made.recent(kinds={"sent"})] == [1, 2]
    assert [e.number for e in made.recent(last=1)] == [4]
    assert made.recent(last=0) == []
    assert made.recent(kinds={"sent"}, after=2) == []


def test_a_kind_that_is_not_in_the_table_is_a_mistake() -> None:
    with pytest.raises(KeyError):
        hub().tell("sneezed", {})


def test_an_event_is_plain_json_whatever_was_told() -> None:
    made = hub()
    made.tell("round", {"loss": np.float32(0.5), "nan": float("nan"), "ids": {"b", "a"}})
    assert json.loads(json.dumps(made.recent()[0].plain(), allow_nan=False)) == {
        "number": 1,
        "time": 100.0,
        "kind": "round",
        "data": {"loss": 0.5, "nan": None, "ids": ["a", "b"]},
    }


def test_a_watcher_gets_what_happens_from_now_on() -> None:
    async def scene() -> None:
        made = hub()
        told(made, "sent", 1)
        with made.watch() as watch:
            told(made, "round", 2)
            assert [e.number for e in await watch.some()] == [2, 3]
            waiting = asyncio.create_task(watch.some())
            await asyncio.sleep(0)
            made.tell("left", {})
            assert [e.kind for e in await waiting] == ["left"]
        assert made.watchers == 0

    play(scene)


def test_a_watcher_of_some_kinds_hears_of_no_others() -> None:
    async def scene() -> None:
        made = hub()
        with made.watch(kinds={"round"}) as watch:
            told(made, "sent", 3)
            told(made, "round", 1)
            assert [e.kind for e in await watch.some()] == ["round"]

    play(scene)


def test_a_slow_watcher_loses_the_oldest_and_is_told_how_many() -> None:
    async def scene() -> None:
        made = hub()
        with made.watch(limit=3) as slow, made.watch() as quick:
            told(made, "sent", 10)
            found = await slow.some()
            assert [(e.kind, e.number) for e in found] == [("lost", 7), ("sent", 8), ("sent", 9), ("sent", 10)]
            assert found[0].data == {"count": 7}
            told(made, "sent", 1)
            assert [e.kind for e in await slow.some()] == ["sent"], "it is told once"
            assert len(await quick.some()) == 11

    play(scene)


def test_closing_gives_what_waits_and_then_the_end() -> None:
    async def scene() -> None:
        made = hub()
        with made.watch() as watch:
            told(made, "finished", 1)
            made.close()
            assert [e.kind for e in await watch.some()] == ["finished"]
            assert await watch.some() == []

    play(scene)


def test_a_watcher_that_waits_is_woken_by_the_end() -> None:
    async def scene() -> None:
        made = hub()
        with made.watch() as watch:
            waiting = asyncio.create_task(watch.some())
            await asyncio.sleep(0)
            made.close()
            assert await waiting == []

    play(scene)


def test_there_is_room_for_so_many_watchers_and_no_more() -> None:
    async def scene() -> None:
        made = hub()
        watches = [made.watch() for _ in range(WATCHERS)]
        for watch in watches:
            watch.__enter__()
        with pytest.raises(TooManyWatchers), made.watch():
            pass
        watches[0].__exit__()
        with made.watch():
            assert made.watchers == WATCHERS

    play(scene)


def test_a_warning_is_on_the_log_too() -> None:
    made = hub()
    with capture_logs() as lines:
        made.warn("the disk is nearly full", free=3)
    assert [(line["log_level"], line["event"], line["free"]) for line in lines] == [
        ("warning", "the disk is nearly full", 3)
    ]
    assert made.recent()[0].data == {"text": "the disk is nearly full", "free": 3}


def test_every_kind_is_explained() -> None:
    assert all(KINDS.values())
