"""Answers Send. A slow push continues in the background after its round has moved on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from math import inf
from typing import Any

from pfl_node.errors import LayoutMismatch, Refused
from pfl_node.model import Layout
from pfl_node.node.clock import now
from pfl_node.node.context import NodeContext
from pfl_node.node.peer_calls import Calls
from pfl_node.node.slow_sends import SlowSends
from pfl_node.node.waiting import PendingWaits
from pfl_node.protocol.deadlines import Deadlines, SendDeadlines
from pfl_node.steps import Publish, Report, Send
from pfl_node.types import Part, PeerId, expected_vectors, parts_of

FINISH_TIMEOUT = 5.0  # seconds for the pending pushes of a node that stops


class Pusher:
    """One transfer to a peer at a time. A transfer that has begun is completed; a queued model is replaced by the
    next one."""

    def __init__(self, context: NodeContext, calls: Calls, waits: PendingWaits, deadlines: Deadlines) -> None:
        self._deadlines = deadlines
        self._waits = waits
        self._calls = calls
        self._context = context
        self._transfer = context.settings.round.transfer
        self._receipts = SendDeadlines(context.settings.round)
        self._slots = PushSlots(context.settings.wire.concurrency)
        self._tasks: dict[asyncio.Task[bool], None] = {}
        self._unfinished: dict[PeerId, tuple[asyncio.Task[bool], float]] = {}  # and until when it is protected
        self._queued: dict[PeerId, tuple[asyncio.Task[bool], asyncio.Task[bool]]] = {}  # and the push it waits for
        self._number = 0
        self._accepted = 0.0  # time of the last accepted push
        self._lasted = 0.0  # seconds that it took
        self._slow = SlowSends()
        self._running: dict[PeerId, float] = {}  # the time at which each push began

    async def send(self, step: Send) -> tuple[PeerId, ...]:
        """Push to all, `wire.concurrency` at a time, and return the peers that accepted. Without a round, wait for
        every push; with one, only as long as these peers usually need; in no case longer than `round.transfer`."""
        check_message(step, self._context.mailbox.vectors, self._context.learner.layout)
        check_part(step.model.layout.part, self._context.mailbox.takes)
        self._number += 1
        number, began = self._number, now()
        pending = {p: None for p in step.to if self._may_start(p, step)}
        seconds = min(inf if step.round is None else self._receipts.seconds(pending), self._transfer)
        messages = await self._messages(step, list(pending))
        sends = {p: self._start(p, message, number, pending) for p, message in messages.items()}
        with self._waits.on("SendModel", step.round) as wait:
            wait.peers, wait.until = pending, began + seconds
            if sends:
                await asyncio.wait(sends.values(), timeout=seconds)
        ended = now()
        for peer in pending:
            self._unfinished[peer] = sends[peer], began + self._receipts.usual(peer)
            self._receipts.given_up(peer, number, ended - began)
            if self._context.network.transferring(peer):
                self._slots.leave(sends[peer])
        if step.round is not None:
            self._deadlines.spent(ended - max(began, self._accepted))
        done = {p: task for p, task in sends.items() if p not in pending and not task.cancelled()}
        return tuple(p for p, task in done.items() if task.result())

    @property
    def seconds(self) -> float:
        """How long a push takes: the last accepted one or, if that is longer, one in progress."""
        flowing = [since for peer, since in self._running.items() if self._context.network.transferring(peer)]
        return max(self._lasted, now() - min(flowing, default=now()))

    def dump(self) -> tuple[Any, ...]:
        """The state that a segment of a simulation resumes with; pending pushes are not part of it."""
        return self._number, self._accepted, self._receipts.dump()

    def load(self, row: tuple[Any, ...]) -> None:
        self._number, self._accepted, receipts = row
        self._receipts.load(receipts)

    def _may_start(self, peer: PeerId, step: Send) -> bool:
        """Whether a new push may start or be queued. An unfinished push of an earlier round without progress is
        cancelled, unless it is younger than this peer's usual time: with short rounds a peer that has returned
        would never get a model."""
        task, until = self._unfinished.get(peer, (None, 0.0))
        if task is None or task.done():
            self._unfinished.pop(peer, None)
            return True
        if self._context.network.transferring(peer):
            return True
        if step.round is not None and now() < until:
            return False
        task.cancel()
        del self._unfinished[peer]
        return True

    async def finish(self) -> None:
        """Let pending pushes finish, then cancel them."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=FINISH_TIMEOUT)
        for task in self._tasks:
            task.cancel()

    def _start(self, peer: PeerId, step: Send, number: int, pending: dict[PeerId, None]) -> asyncio.Task[bool]:
        before, _ = self._unfinished.get(peer, (None, 0.0))
        if queued := self._queued.pop(peer, None):
            replaced, before = queued
            replaced.cancel()
        task = asyncio.create_task(self._one(peer, step, number, pending, before))
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        if before is not None:
            self._queued[peer] = task, before
        return task

    async def _messages(self, step: Send, peers: list[PeerId]) -> dict[PeerId, Send]:
        """With `wire.compress = top`, choose the numbers now: a push that waits for another one would take the
        turn of a later model, and count as sent after it. Fragments are cut when the message is sent."""
        compressor = self._context.compressor
        if compressor.how.kind != "top" or step.whole:
            return dict.fromkeys(peers, step)
        models = await compressor.compress(step.model, peers, step.round, step.base)
        return {p: replace(step, model=model, base=None) for p, model in zip(peers, models, strict=True)}

    async def _one(
        self,
        peer: PeerId,
        step: Send,
        number: int,
        pending: dict[PeerId, None],
        before: asyncio.Task[bool] | None,
    ) -> bool:
        """`before`: the push to this peer that is not finished."""
        began, since = now(), None
        try:
            if before is not None:
                await asyncio.wait((before,))
                began = now()
                self._queued.pop(peer, None)
            async with self._slots.held():
                self._running[peer] = since = now()
                answer = await self._calls.push(peer, step)
            if self._slow.is_news(peer, answer):
                self._context.recorder.too_slow(peer)
        finally:
            del pending[peer]
            if since is not None:  # a push that was replaced in the queue has not begun: another one is running
                self._running.pop(peer, None)
        ended = now()
        if isinstance(answer, int):
            self._accepted, self._lasted = ended, ended - since
            self._receipts.answered(peer, number, ended - began)
            return True
        if isinstance(answer, Refused):
            self._receipts.refused(peer)
        else:
            self._receipts.failed(peer, number, ended - began)
        return False


def check_message(step: Send | Publish | Report, declared: Mapping[str, Part], layout: Layout) -> None:
    """Raises LayoutMismatch for a message that every peer would refuse."""
    part, kind = step.model.layout.part, type(step).__name__
    if part != "predictions" and (step.model.layout.whole or step.model.layout) != layout:
        raise LayoutMismatch(f"a {kind} of {step.model!r}, which is not a model of this task or a part of one")
    expected = expected_vectors(declared, part)
    if (given := parts_of(step.vectors)) != expected:
        raise LayoutMismatch(
            f"a {kind} with the vectors {given}, but the policy declares vectors = {dict(expected)}"
        )


def check_part(part: Part, takes: Sequence[Part]) -> None:
    """Raises LayoutMismatch for a push that every peer would refuse, because all have the same policy."""
    if part not in takes:
        raise LayoutMismatch(f"a Send of a {part}, but the policy declares takes = {tuple(takes)}")


class PushSlots:
    """`most` pushes at a time. A transfer that continues after its round leaves its slot, so that slow peers do
    not delay the others; at most `most` of those continue, and the oldest is cancelled for a new one."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._free = asyncio.Semaphore(most)
        self._holders: dict[asyncio.Task[Any], None] = {}
        self._left: dict[asyncio.Task[Any], None] = {}

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        task = asyncio.current_task()
        assert task is not None
        await self._free.acquire()
        self._holders[task] = None
        try:
            yield
        finally:
            self._left.pop(task, None)
            self._release(task)

    def leave(self, task: asyncio.Task[Any]) -> None:
        if task not in self._holders:
            return
        self._release(task)
        if len(self._left) >= self._most:
            next(iter(self._left)).cancel()
        self._left[task] = None

    def _release(self, task: asyncio.Task[Any]) -> None:
        if task in self._holders:
            del self._holders[task]
            self._free.release()
