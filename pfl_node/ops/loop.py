"""The event loop of a process: uvloop if it is installed."""

from __future__ import annotations

import asyncio
import resource
import signal
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

T = TypeVar("T")


def run_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine with the highest allowed limit of open files. One loop per process: grpc.aio does not
    support several."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # macOS enforces a lower limit than it reports
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    with _same_signal_handlers(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


@contextmanager
def _same_signal_handlers() -> Iterator[None]:
    """A closed uvloop leaves its handlers installed: the program would no longer react to Ctrl-C."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                if handler is not None:  # it was not installed by Python
                    signal.signal(number, handler)
