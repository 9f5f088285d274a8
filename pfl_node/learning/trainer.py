"""The thread that runs all torch code of a process, shared by its nodes. Does not import torch.

Long jobs run in order of submission. Urgent jobs run between the batches of the running job.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any, Generic, TypeVar

T = TypeVar("T")
Between = Callable[[], None]


class Stopped(BaseException):
    """Raised inside a job whose caller no longer awaits it; a BaseException, so that the job does not catch it."""


class _Order(Generic[T]):
    """A job and the future of its result."""

    def __init__(self, work: Callable[[], T]) -> None:
        self.work = work
        self.loop = asyncio.get_running_loop()
        self.result: asyncio.Future[T] = self.loop.create_future()
        self.unwanted = False  # set by the loop, read by the thread

    def run(self) -> None:
        work = self.work
        del self.work  # a reference cycle would keep the job's models alive
        if self.unwanted:
            return
        try:
            value = work()
        except Stopped:
            self._answer(lambda: self.result.cancel())
        except StopIteration as error:  # a future cannot hold it
            failure: BaseException = RuntimeError(f"a job raised StopIteration: {error}")
            self._answer(lambda: self.result.set_exception(failure))
        except BaseException as error:
            failure = error
            self._answer(lambda: self.result.set_exception(failure))
        else:
            self._answer(lambda: self.result.set_result(value))

    def _answer(self, set_outcome: Callable[[], object]) -> None:
        def deliver() -> None:
            if not self.result.done():
                set_outcome()

        with suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(deliver)


class TrainerThread:
    """Submit work with `do` and `soon`. Cancelling the awaiter withdraws the job, or stops it after a batch."""

    def __init__(self) -> None:
        self._ready = threading.Condition()
        self._urgent: deque[_Order[Any]] = deque()
        self._jobs: deque[_Order[Any]] = deque()
        self._closing = False
        self._last: _Order[None] | None = None  # run when the thread ends
        self._thread: threading.Thread | None = None
        self._at_end: list[Callable[[], None]] = []
        self._idle_since: float | None = monotonic()
        self._idle = 0.0  # seconds, without the present pause

    def idle_seconds(self) -> float:
        """Seconds without work since the start."""
        since = self._idle_since
        return self._idle + (monotonic() - since if since is not None else 0.0)

    def at_end(self, work: Callable[[], None]) -> None:
        """Run this on the thread before it ends."""
        self._at_end.append(work)

    async def do(self, work: Callable[[Between], T]) -> T:
        """Run a long job, which must call its argument between batches."""

        def job() -> T:
            return work(lambda: self._between(order))

        order = _Order(job)
        return await self._hand_in(order, self._jobs)

    async def soon(self, work: Callable[[], T]) -> T:
        """Run a short job without waiting for the end of a long one: the evaluation for a peer."""
        return await self._hand_in(_Order(work), self._urgent)

    async def close(self) -> None:
        """Stop the running job after its batch, cancel waiting ones, and end the thread."""
        with self._ready:
            self._closing = True
            left = [*self._urgent, *self._jobs]
            self._urgent.clear()
            self._jobs.clear()
            if self._thread is not None and self._last is None:
                self._last = _Order(lambda: None)
            self._ready.notify()
        for order in left:
            order.result.cancel()
        if self._last is not None and self._thread is not None:
            await asyncio.shield(self._last.result)
            self._thread.join()

    async def _hand_in(self, order: _Order[T], queue: deque[_Order[Any]]) -> T:
        with self._ready:
            if self._closing:
                raise RuntimeError("the trainer is closed")
            queue.append(order)
            self._ready.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="trainer", daemon=True)
                self._thread.start()
        try:
            return await order.result
        except asyncio.CancelledError:
            order.unwanted = True
            raise

    def _work(self) -> None:
        while not self._closing:
            with self._ready:
                self._wait()
            self._run_urgent()
            if order := self._take(self._jobs):
                order.run()
            del order  # release the models of the last job
        for work in self._at_end:
            work()
        with self._ready:  # `close` may not have set this yet
            last = self._last
        if last is not None:
            last.run()

    def _wait(self) -> None:
        if self._idle_since is None:
            self._idle_since = monotonic()
        while not (self._urgent or self._jobs or self._closing):
            self._ready.wait()
        self._idle, self._idle_since = self.idle_seconds(), None

    def _between(self, job: _Order[Any]) -> None:
        if self._urgent:
            self._run_urgent()
        if job.unwanted or self._closing:
            raise Stopped

    def _run_urgent(self) -> None:
        """Run only the jobs that wait now, so that training continues."""
        for _ in range(len(self._urgent)):
            if order := self._take(self._urgent):
                order.run()

    def _take(self, queue: deque[_Order[Any]]) -> _Order[Any] | None:
        with self._ready:
            return queue.popleft() if queue else None
