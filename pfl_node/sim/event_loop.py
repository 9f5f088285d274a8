"""An asyncio event loop on virtual time: instead of sleeping, it advances its clock to the next timer. A
node's clock may be skewed."""

from __future__ import annotations

import asyncio
from asyncio.events import AbstractEventLoop
from collections.abc import Callable, Iterable
from contextvars import Context, ContextVar
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf, isfinite, prod
from typing import Any

from pfl_node.errors import SimulationStuck
from pfl_node.sim.faults import Skew

MAX_SPINS = 1_000_000  # callbacks without the clock advancing, after which the run counts as stuck
SWEEP = 1000  # cancelled timers that may stay in the heap before it is rebuilt


@dataclass(frozen=True, slots=True)
class Piece:
    """An interval of simulation time in which the rate is constant."""

    begin: float
    local: float  # at `begin`
    rate: float


class LocalTime:
    """Local time as a piecewise linear, increasing function of simulation time, and its inverse."""

    def __init__(self, skews: Iterable[Skew]) -> None:
        skews = list(skews)
        edges = sorted({0.0, *(t for f in skews for t in (f.at, f.until) if t < inf)})
        self._pieces: list[Piece] = []
        for begin in edges:
            rate = prod((f.rate for f in skews if f.at <= begin < f.until), start=1.0)
            jump = sum(f.ahead for f in skews if f.at == begin)
            self._pieces.append(Piece(begin, (self.at(begin) if self._pieces else begin) + jump, rate))

    def at(self, time: float) -> float:
        piece = next((p for p in reversed(self._pieces) if p.begin <= time), self._pieces[0])
        return piece.local + (time - piece.begin) * piece.rate

    def inverse(self, local: float) -> float:
        """The earliest simulation time at which the local time is `local` or later."""
        place = next((i for i, p in reversed([*enumerate(self._pieces)]) if p.local <= local), None)
        if place is None:
            return self._pieces[0].begin
        piece = self._pieces[place]
        end = self._pieces[place + 1].begin if place + 1 < len(self._pieces) else inf
        return min(end, piece.begin + (local - piece.local) / piece.rate)


class SkewedClock:
    def __init__(self, local: LocalTime, world: Callable[[], float]) -> None:
        self._local = local
        self._world = world
        self._fired = -inf  # local time of the latest timer that fired: rounding must not show an earlier one

    @property
    def now(self) -> float:
        return self.show(self._world())

    def show(self, world: float) -> float:
        return max(self._fired, self._local.at(world))

    def when(self, time: float) -> float:
        """The simulation time at which this clock shows `time`."""
        return self._local.inverse(time)

    def timer_fired(self, time: float) -> None:
        """Record that the timer set to `time` has fired."""
        self._fired = max(self._fired, time)


# The clock of the node whose code is running; None: the loop's own time.
CLOCK: ContextVar[SkewedClock | None] = ContextVar("CLOCK", default=None)


class VirtualLoop(asyncio.BaseEventLoop):
    """Timers due at the same time fire in the order they were set. `now`, `at` and `when` use the simulation's
    time; the methods inherited from asyncio use the clock of the node whose code is running."""

    def __init__(self, now: float = 0.0, *, max_spins: int = MAX_SPINS) -> None:
        super().__init__()
        self.now = now
        self._max_spins = max_spins
        self._timers: list[tuple[float, int, asyncio.TimerHandle, SkewedClock | None]] = []
        self._number = count()
        self._cancelled = 0
        self._spins = 0  # callbacks since the clock last advanced
        self._failure: BaseException | None = None
        self._closing = False
        self._done: Callable[[], bool] = lambda: False
        self.waiting: Callable[[], str] = lambda: ""  # which node waits for what, for error messages
        self.set_exception_handler(self._failed)

    # -- running -------------------------------------------------------------------------------------------

    def run(self, done: Callable[[], bool]) -> None:
        """Run until `done()` is true; it is checked whenever no callback is ready. Re-raises an exception from a
        callback, and raises SimulationStuck if no timer is left or the clock does not advance."""
        self._done = done
        self.run_forever()

    def cancel_tasks(self) -> None:
        """Cancel every task and run until all have ended, even if some fail; then raise the first failure. A task
        that is alive when its loop is collected would run its cleanup outside of the loop."""
        self._done, self._failure, self._spins, self._closing = lambda: False, None, 0, True
        while left := asyncio.all_tasks(self):
            for task in left:
                task.cancel()
            self.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        if self._failure:
            raise self._failure

    def fail(self, error: BaseException) -> None:
        """Make `run` raise this error, unless an earlier one is pending."""
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
        if self._failure and not self._closing:
            failure, self._failure = self._failure, None
            raise failure
        if self._spins > self._max_spins:
            raise SimulationStuck(f"{self._spins} callbacks ran while the time stood still at {self.now:g} s")

    def _advance(self) -> None:
        """Advance the clock to the next timer and make every timer due by then ready."""
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
        """The identity, to match `SkewedClock.when`, which converts a node's time to simulation time."""
        return time

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        clock = CLOCK.get()
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._set(clock.when(when) if clock else when, handle, clock)
        return handle

    def at(self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None) -> None:
        """Call back at that simulation time; never, if it is infinite."""
        self._set(when, asyncio.TimerHandle(when, callback, args, self, context), None)

    def after(self, seconds: float, callback: Callable[..., object], *args: Any) -> None:
        self.at(self.now + seconds, callback, *args)

    async def until(self, when: float) -> None:
        """Wait until that simulation time."""
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

    # -- overrides without threads or sockets --------------------------------------------------------------

    def run_in_executor(self, _: object, func: Callable[..., Any], *args: Any) -> Any:  # type: ignore[override]
        """Run the function immediately: with a thread, the order of events would depend on the machine."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def _write_to_self(self) -> None:
        """Asyncio calls this from other threads; there are none."""

    def __del__(self) -> None:
        """The loop holds no sockets, so there is nothing to warn about."""


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
