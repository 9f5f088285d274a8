"""Answers Send. A slow push continues in the background after its round has moved on."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from math import inf, isfinite
from typing import Any

from pfl_node.errors import Refused
from pfl_node.node.clock import now
from pfl_node.node.context import NodeContext
from pfl_node.node.peer_calls import Calls
from pfl_node.node.waiting import PendingWaits
from pfl_node.protocol.deadlines import Deadlines, SendDeadlines
from pfl_node.steps import Send
from pfl_node.types import PeerId

FINISH_TIMEOUT = 5.0  # seconds for the pending pushes of a node that stops


class Pusher:
    def __init__(self, context: NodeContext, calls: Calls, waits: PendingWaits, patience: Deadlines) -> None:
        self._patience = patience
        self._waits = waits
        self._calls = calls
        self._receipts = SendDeadlines(context.settings.round)
        self._slots = asyncio.Semaphore(context.settings.wire.concurrency)
        self._tasks: dict[asyncio.Task[bool], None] = {}
        self._unfinished: dict[PeerId, tuple[asyncio.Task[bool], float]] = {}  # of earlier rounds; protected until
        self._number = 0
        self._accepted = 0.0  # time of the last accepted push

    async def send(self, step: Send) -> tuple[PeerId, ...]:
        """Push to all, `wire.concurrency` at a time, and return the peers that accepted. Without a round, wait for
        every push; with one, only as long as these peers usually need."""
        self._number += 1
        number, began = self._number, now()
        pending = {p: None for p in step.to if step.round is None or self._replace_unfinished(p)}
        seconds = inf if step.round is None else self._receipts.seconds(pending)
        sends = {p: self._start(self._one(p, step, number, pending)) for p in list(pending)}
        with self._waits.on("SendModel", step.round) as wait:
            wait.peers, wait.until = pending, began + seconds if isfinite(seconds) else None
            if sends:
                await asyncio.wait(sends.values(), timeout=seconds if isfinite(seconds) else None)
        ended = now()
        for peer in pending:
            self._unfinished[peer] = sends[peer], began + self._receipts.usual(peer)
            self._receipts.given_up(peer, number, ended - began)
        if step.round is not None:
            self._patience.spent(ended - max(began, self._accepted))
        return tuple(p for p, task in sends.items() if p not in pending and task.result())

    def dump(self) -> tuple[Any, ...]:
        """The state that a segment of a simulation resumes with; pending pushes are not part of it."""
        return self._number, self._accepted, self._receipts.dump()

    def load(self, row: tuple[Any, ...]) -> None:
        self._number, self._accepted, receipts = row
        self._receipts.load(receipts)

    def _replace_unfinished(self, peer: PeerId) -> bool:
        """Cancel the unfinished push of an earlier round, unless it is younger than this peer's usual time: with
        short rounds a peer that has returned would never get a model. Return whether a new push may start."""
        task, until = self._unfinished.get(peer, (None, 0.0))
        if task is None:
            return True
        if not task.done() and now() < until:
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

    def _start(self, push: Coroutine[Any, Any, bool]) -> asyncio.Task[bool]:
        task = asyncio.create_task(push)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        return task

    async def _one(self, peer: PeerId, step: Send, number: int, pending: dict[PeerId, None]) -> bool:
        began = now()
        try:
            async with self._slots:
                answer = await self._calls.push(peer, step)
        finally:
            del pending[peer]
        ended = now()
        if isinstance(answer, int):
            self._accepted = ended
            self._receipts.answered(peer, number, ended - began)
            return True
        if isinstance(answer, Refused):
            self._receipts.refused(peer)
        else:
            self._receipts.failed(peer, number, ended - began)
        return False
