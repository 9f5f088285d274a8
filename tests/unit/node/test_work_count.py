"""Counting trained and scored models."""

from __future__ import annotations

import asyncio

import pytest

from pfl_node.node.context import WorkCount


def test_models_are_counted_by_kind_and_the_seconds_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([10.0, 12.5, 20.0, 21.0])
    monkeypatch.setattr("pfl_node.node.context.now", lambda: next(times))
    work = WorkCount()
    with work.of("trained"):
        pass
    with work.of("scored", 4):
        pass
    assert work.models == {"trained": 1, "scored": 4}
    assert work.seconds == 3.5


def test_work_that_failed_or_was_stopped_is_not_counted() -> None:
    async def go() -> WorkCount:
        work = WorkCount()
        with pytest.raises(ZeroDivisionError), work.of("trained"):
            raise ZeroDivisionError
        return work

    work = asyncio.run(go())
    assert (dict(work.models), work.seconds) == ({}, 0.0)
