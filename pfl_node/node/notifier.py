"""Condition variables by topic: a model in the inbox does not wake a task that waits for a round."""

from __future__ import annotations

import asyncio
from math import inf
from typing import Literal

Topic = Literal["inbox", "rounds", "members"]


class Notifier:
    """`notify` wakes the tasks that already wait for the topic; later ones wait for the next `notify`."""

    def __init__(self) -> None:
        self._waiting: dict[Topic, dict[asyncio.Future[bool], None]] = {"inbox": {}, "rounds": {}, "members": {}}

    def notify(self, topic: Topic) -> None:
        waiting = self._waiting[topic]
        if waiting:
            self._waiting[topic] = {}
            for future in waiting:
                if not future.done():
                    future.set_result(True)

    async def wait(self, seconds: float | None, *topics: Topic) -> bool:
        """True: one of the topics was notified; False: timeout."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()
        timer = None if seconds is None or seconds == inf else loop.call_later(max(0.0, seconds), _expire, future)
        for topic in topics:
            self._waiting[topic][future] = None
        try:
            return await future
        finally:
            if timer:
                timer.cancel()
            for topic in topics:
                self._waiting[topic].pop(future, None)


def _expire(future: asyncio.Future[bool]) -> None:
    if not future.done():
        future.set_result(False)
