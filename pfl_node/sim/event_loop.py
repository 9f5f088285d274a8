"""An asyncio event loop in virtual time: instead of waiting, it moves its clock to the next timer."""

from __future__ import annotations

import asyncio
from asyncio.events import AbstractEventLoop
from collections.abc import Callable
from contextvars import Context, ContextVar
from heapq import heapify, heappop, heappush
from itertools import count
from math import isfinite
from typing import Any

from pfl_node.errors import SimulationStuck
from pfl_node.sim.clock_skew import SkewedClock

HASTE = 1_000_000  # callbacks in no time, after which something is taken to go round in circles
SWEEP = 1000  # cancelled timers that may wait until their time comes

# The clock of the node whose code runs; None: it shows the loop's own time.
CLOCK: ContextVar[SkewedClock | None] = ContextVar("CLOCK", default=None)


class VirtualLoop(asyncio.BaseEventLoop):
    """Timers that are due at the same time fire in the order they were set. `now`, `at` and `when` are of the
    world's time, everything that asyncio itself has is of the time of the node whose code runs."""

    def __init__(self, now: float = 0.0, *, haste: int = HASTE) -> None:
        super().__init__()
        self.now = now
        self._haste = haste
        self._timers: list[tuple[float, int, asyncio.TimerHandle, SkewedClock | None]] = []
        self._number = count()
        self._cancelled = 0
        self._spins = 0  # callbacks since time last moved
        self._failure: BaseException | None = None
        self._done: Callable[[], bool] = lambda: False
        self.waiting: Callable[[], str] = lambda: ""  # who waits for what, for an error
        self.set_exception_handler(self._failed)

    # -- the run -------------------------------------------------------------------------------------------

    def run(self, done: Callable[[], bool]) -> None:
        """Until `done`, which is asked whenever nothing is left to do at this moment. Raises what a callback
        raised, and SimulationStuck when nothing can happen any more or time stands still."""
        self._done = done
        self.run_forever()

    def fail(self, error: BaseException) -> None:
        """Let `run` raise this."""
        self._failure = self._failure or error

    def _failed(self, loop: AbstractEventLoop, context: dict[str, Any]) -> None:  # noqa: ARG002
        self.fail(context.get("exception") or RuntimeError(context["message"]))

    def _run_once(self) -> None:
        ready: Any = self._ready  # type: ignore[attr-defined]
        if not ready:
            if self._done():
                self.stop()
                return
            self._advance()
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()
                self._spins += 1
        if self._failure:
            failure, self._failure = self._failure, None
            raise failure
        if self._spins > self._haste:
            raise SimulationStuck(f"{self._spins} callbacks ran while the time stood still at {self.now:g} s")

    def _advance(self) -> None:
        """Move the time to the next timer, and let all fire that are due then."""
        timers, ready = self._timers, self._ready  # type: ignore[attr-defined]
        while timers and timers[0][2]._cancelled:
            heappop(timers)
            self._cancelled -= 1
        if not timers:
            raise SimulationStuck(f"nothing is left to happen{self.waiting()}")
        if timers[0][0] > self.now:
            self.now, self._spins = timers[0][0], 0
        while timers and timers[0][0] <= self.now:
            _, _, handle, clock = heappop(timers)
            if handle._cancelled:
                self._cancelled -= 1
                continue
            handle._scheduled = False  # type: ignore[attr-defined]
            if clock:
                clock.timer_fired(handle.when())
            ready.append(handle)

    # -- timers --------------------------------------------------------------------------------------------

    def time(self) -> float:
        clock = CLOCK.get()
        return clock.show(self.now) if clock else self.now

    def when(self, time: float) -> float:
        """At what time of the world the world's clock shows this time."""
        return time

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        clock = CLOCK.get()
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._set(clock.when(when) if clock else when, handle, clock)
        return handle

    def at(self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None) -> None:
        """Call it at that time of the world; never, when that is infinite."""
        self._set(when, asyncio.TimerHandle(when, callback, args, self, context), None)

    def after(self, seconds: float, callback: Callable[..., object], *args: Any) -> None:
        self.at(self.now + seconds, callback, *args)

    async def until(self, when: float) -> None:
        """Wait until that time of the world."""
        if when > self.now:
            future = self.create_future()
            self.at(when, _wake, future)
            await future

    def _set(self, when: float, handle: asyncio.TimerHandle, clock: SkewedClock | None) -> None:
        if isfinite(when):
            handle._scheduled = True  # type: ignore[attr-defined]
            heappush(self._timers, (max(when, self.now), next(self._number), handle, clock))

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:  # noqa: ARG002
        self._cancelled += 1
        if self._cancelled > SWEEP and 2 * self._cancelled > len(self._timers):
            self._timers = [timer for timer in self._timers if not timer[2]._cancelled]
            heapify(self._timers)
            self._cancelled = 0

    # -- what needs no waiting -----------------------------------------------------------------------------

    def run_in_executor(self, _: object, func: Callable[..., Any], *args: Any) -> Any:  # type: ignore[override]
        """At once: a thread would make the order of things depend on the machine."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def _write_to_self(self) -> None:
        """Called from other threads, of which there are none."""

    def __del__(self) -> None:
        """It holds no sockets that could be left open."""


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
