"""Answers Send. A push that takes long goes on beside the round that it belongs to."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from math import inf, isfinite
from typing import Any

from pfl_node.errors import Refused
from pfl_node.node.calls import Calls
from pfl_node.node.context import NodeContext
from pfl_node.node.ports import now
from pfl_node.node.waiting import PendingWaits
from pfl_node.protocol.deadlines import Deadlines, SendDeadlines
from pfl_node.steps import Send
from pfl_node.types import PeerId

LAST = 5.0  # seconds that the messages in hand get at the end


class Pusher:
    """One for each driver."""

    def __init__(self, context: NodeContext, calls: Calls, waits: PendingWaits, patience: Deadlines) -> None:
        self._patience = patience
        self._waits = waits
        self._calls = calls
        self._receipts = SendDeadlines(context.settings.round)
        self._slots = asyncio.Semaphore(context.settings.wire.concurrency)
        self._under_way: dict[asyncio.Task[bool], None] = {}
        self._left_alone: dict[PeerId, tuple[asyncio.Task[bool], float]] = {}  # of earlier rounds; for how long
        self._number = 0
        self._taken = 0.0  # when a push was last taken

    async def send(self, step: Send) -> tuple[PeerId, ...]:
        """As many at a time as the settings allow; the answer names those who took it. Without a round every push
        is waited for, with one only as long as the peers usually need."""
        self._number += 1
        number, began = self._number, now()
        still = {p: None for p in step.to if step.round is None or self._make_way(p)}
        seconds = inf if step.round is None else self._receipts.seconds(still)
        sends = {p: self._start(self._one(p, step, number, still)) for p in list(still)}
        with self._waits.on("SendModel", step.round) as wait:
            wait.peers, wait.until = still, began + seconds if isfinite(seconds) else None
            if sends:
                await asyncio.wait(sends.values(), timeout=seconds if isfinite(seconds) else None)
        ended = now()
        for peer in still:
            self._left_alone[peer] = sends[peer], began + self._receipts.usual(peer)
            self._receipts.given_up(peer, number, ended - began)
        if step.round is not None:
            self._patience.spent(ended - max(began, self._taken))
        return tuple(p for p, task in sends.items() if p not in still and task.result())

    def dump(self) -> tuple[Any, ...]:
        """What goes on after a segment of a simulation; pushes under way do not."""
        return self._number, self._taken, self._receipts.dump()

    def load(self, row: tuple[Any, ...]) -> None:
        self._number, self._taken, receipts = row
        self._receipts.load(receipts)

    def _make_way(self, peer: PeerId) -> bool:
        """A model that has not got through by the next round gives way to that round's, but not before its time: a
        peer that is back would never get one where rounds are short."""
        task, until = self._left_alone.get(peer, (None, 0.0))
        if task is None:
            return True
        if not task.done() and now() < until:
            return False
        task.cancel()
        del self._left_alone[peer]
        return True

    async def finish(self) -> None:
        """A stop lets the messages in hand finish."""
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=LAST)
        for task in self._under_way:
            task.cancel()

    def _start(self, push: Coroutine[Any, Any, bool]) -> asyncio.Task[bool]:
        task = asyncio.create_task(push)
        self._under_way[task] = None
        task.add_done_callback(lambda done: self._under_way.pop(done, None))
        return task

    async def _one(self, peer: PeerId, step: Send, number: int, still: dict[PeerId, None]) -> bool:
        began = now()
        try:
            async with self._slots:
                answer = await self._calls.push(peer, step)
        finally:
            del still[peer]
        ended = now()
        if isinstance(answer, int):
            self._taken = ended
            self._receipts.answered(peer, number, ended - began)
            return True
        if isinstance(answer, Refused):
            self._receipts.refused(peer)
        else:
            self._receipts.failed(peer, number, ended - began)
        return False
