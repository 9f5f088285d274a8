"""Ends what computes for ever. Knows no simulator: the system's timer interrupts whatever runs."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from pfl_node.errors import SimulationStuck


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """So many seconds of computing, not of waiting, then SimulationStuck where it is. In the main thread of a
    system that has such a timer; elsewhere there is no limit."""
    timer = getattr(signal, "ITIMER_VIRTUAL", None)
    if timer is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def over(_: int, frame: FrameType | None) -> None:
        where = f" ({Path(frame.f_code.co_filename).name}, line {frame.f_lineno})" if frame else ""
        raise SimulationStuck(f"it has computed for {seconds:g} s and asks for nothing{where}")

    before = signal.signal(signal.SIGVTALRM, over)
    signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        signal.setitimer(timer, 0)
        signal.signal(signal.SIGVTALRM, before)
