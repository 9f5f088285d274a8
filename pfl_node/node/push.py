"""Answers Send inside the daemon. A push that takes long goes on beside the round that it belongs to."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from math import inf, isfinite
from typing import Any, Protocol, TypeVar

from pfl_node.errors import Refused
from pfl_node.node.context import NodeContext
from pfl_node.node.waiting import PendingWaits
from pfl_node.protocol.deadlines import Deadlines, SendDeadlines
from pfl_node.steps import Send
from pfl_node.types import PeerId

T = TypeVar("T")
Call = Callable[[PeerId, str], Awaitable[T]]  # of a peer at an address
LAST = 5.0  # seconds that the messages in hand get at the end


class Reach(Protocol):
    """Calls a peer; None when it is gone or refuses."""

    def __call__(self, call: str, peer: PeerId, go: Call[T]) -> Awaitable[T | None]: ...


class Pusher:
    """One for each driver."""

    def __init__(self, context: NodeContext, waits: PendingWaits, reach: Reach, patience: Deadlines) -> None:
        self._context = context
        self._patience = patience
        self._waits = waits
        self._reach = reach
        self._receipts = SendDeadlines(context.settings.round)
        self._slots = asyncio.Semaphore(context.settings.wire.concurrency)
        self._under_way: set[asyncio.Task[bool]] = set()
        self._left_alone: dict[PeerId, tuple[asyncio.Task[bool], float]] = {}  # of earlier rounds; for how long
        self._number = 0
        self._taken = 0.0  # when a push was last taken

    async def send(self, step: Send) -> tuple[PeerId, ...]:
        """As many at a time as the settings allow; the answer names those who took it. Without a round every push
        is waited for, with one only as long as the peers usually need."""
        self._number += 1
        number, began = self._number, time.monotonic()
        still = {p: None for p in step.to if step.round is None or self._make_way(p)}
        seconds = inf if step.round is None else self._receipts.seconds(still)
        sends = {p: self._start(self._one(p, step, number, still)) for p in list(still)}
        with self._waits.on("SendModel", step.round) as wait:
            wait.peers, wait.until = still, began + seconds if isfinite(seconds) else None
            if sends:
                await asyncio.wait(sends.values(), timeout=seconds if isfinite(seconds) else None)
        now = time.monotonic()
        for peer in still:
            self._left_alone[peer] = sends[peer], began + self._receipts.usual(peer)
            self._receipts.given_up(peer, number, now - began)
        if step.round is not None:
            self._patience.spent(now - max(began, self._taken))
        return tuple(p for p, task in sends.items() if p not in still and task.result())

    def _make_way(self, peer: PeerId) -> bool:
        """A model that has not got through by the next round gives way to that round's, but not before its time: a
        peer that is back would never get one where rounds are short."""
        task, until = self._left_alone.get(peer, (None, 0.0))
        if task is None:
            return True
        if not task.done() and time.monotonic() < until:
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
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return task

    async def _one(self, peer: PeerId, step: Send, number: int, still: dict[PeerId, None]) -> bool:
        began, refused = time.monotonic(), False

        async def go(peer: PeerId, address: str) -> int:
            nonlocal refused
            try:
                return await self._put(peer, address, step)
            except Refused:
                refused = True
                raise

        try:
            async with self._slots:
                taken = await self._reach("SendModel", peer, go) is not None
        finally:
            del still[peer]
        now = time.monotonic()
        if taken:
            self._taken = now
            self._receipts.answered(peer, number, now - began)
        elif refused:
            self._receipts.refused(peer)
        else:
            self._receipts.failed(peer, number, now - began)
        return taken

    def _put(self, peer: PeerId, address: str, step: Send) -> Awaitable[int]:
        samples = self._context.learner.samples
        return self._context.client.send(
            peer, address, step.model, round=step.round, tag=step.tag, samples=samples, notes=step.notes
        )
