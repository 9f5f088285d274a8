"""The one thread that owns torch in a process, shared by all its nodes. Knows no torch: the jobs bring it along.

Long jobs run first come, first served. Urgent work runs between the batches of the running job.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

T = TypeVar("T")
Between = Callable[[], None]


class Stopped(BaseException):
    """Raised inside a job whose awaiter is gone; not an Exception, so that a job does not catch it."""


class _Order(Generic[T]):
    """A piece of work and where its result goes."""

    def __init__(self, work: Callable[[], T]) -> None:
        self.work = work
        self.loop = asyncio.get_running_loop()
        self.result: asyncio.Future[T] = self.loop.create_future()
        self.unwanted = False  # written by the loop, read by the thread

    def run(self) -> None:
        work = self.work
        del self.work  # it knows us: a circle would keep the job's models until a collection
        if self.unwanted:
            return
        try:
            value = work()
        except Stopped:
            self._answer(lambda: self.result.cancel())
        except StopIteration as error:  # a future cannot hold this one
            failure: BaseException = RuntimeError(f"a job let a StopIteration through: {error}")
            self._answer(lambda: self.result.set_exception(failure))
        except BaseException as error:
            failure = error
            self._answer(lambda: self.result.set_exception(failure))
        else:
            self._answer(lambda: self.result.set_result(value))

    def _answer(self, settle: Callable[[], object]) -> None:
        def deliver() -> None:
            if not self.result.done():
                settle()

        with suppress(RuntimeError):  # the loop is closed, and the awaiter gone with it
            self.loop.call_soon_threadsafe(deliver)


class Trainer:
    """Hand it work with `do` and `soon`. Cancelling the awaiter takes the work back, or stops it after a batch."""

    def __init__(self) -> None:
        self._ready = threading.Condition()
        self._urgent: deque[_Order[Any]] = deque()
        self._jobs: deque[_Order[Any]] = deque()
        self._closing = False
        self._last: _Order[None] | None = None  # run by the thread as it ends
        self._thread: threading.Thread | None = None

    async def do(self, work: Callable[[Between], T]) -> T:
        """A long job. It must call what it is given between its batches."""

        def job() -> T:
            return work(lambda: self._between(order))

        order = _Order(job)
        return await self._hand_in(order, self._jobs)

    async def soon(self, work: Callable[[], T]) -> T:
        """Short work that must not wait for a job to end: a peer's evaluation."""
        return await self._hand_in(_Order(work), self._urgent)

    async def close(self) -> None:
        """Stop the running job after its batch, take back what waits, and end the thread."""
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
                while not (self._urgent or self._jobs or self._closing):
                    self._ready.wait()
            self._run_urgent()
            if order := self._take(self._jobs):
                order.run()
            del order  # or the models of the last job stay in memory until the next one
        with self._ready:  # `close` may be at the line before it sets this
            last = self._last
        if last is not None:
            last.run()

    def _between(self, job: _Order[Any]) -> None:
        if self._urgent:
            self._run_urgent()
        if job.unwanted or self._closing:
            raise Stopped

    def _run_urgent(self) -> None:
        """What waits right now; what comes meanwhile waits for the next batch, so that training goes on."""
        for _ in range(len(self._urgent)):
            if order := self._take(self._urgent):
                order.run()

    def _take(self, queue: deque[_Order[Any]]) -> _Order[Any] | None:
        with self._ready:
            return queue.popleft() if queue else None
