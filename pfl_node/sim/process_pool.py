"""PoolWorker processes that simulate side by side, each one run at a time on one thread. Knows nothing of what the
runs are for; the order in which they end changes no result."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any, Protocol

Said = dict[str, Any]  # progress (done, total), done (summary) or failed (why)
Heard = Callable[[int, Said], None]  # what was said about the run of that number

MODULE = "pfl_node.sim.sim_worker"
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class RunOrder(Protocol):
    """What a worker is told: a line of text, which its module understands."""

    def dump(self) -> str: ...


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_all(orders: Sequence[RunOrder], workers: int, heard: Heard, module: str | None = None) -> list[Said]:
    """What was said last about each run: `done` or `failed`. `heard` is called in this thread."""
    todo: SimpleQueue[int] = SimpleQueue()
    for number in range(len(orders)):
        todo.put(number)
    said: SimpleQueue[tuple[int, Said]] = SimpleQueue()
    crew = [PoolWorker(orders, todo, said, module or MODULE) for _ in range(min(workers, len(orders)))]
    last: dict[int, Said] = {}
    try:
        while len(last) < len(orders):
            number, word = said.get()
            heard(number, word)
            if word["event"] != "progress":
                last[number] = word
    finally:
        for worker in crew:
            worker.end()
        for worker in crew:
            worker.thread.join()
    return [last[number] for number in range(len(orders))]


class PoolWorker:
    """One process, and another one if it dies; a thread of ours listens to it."""

    def __init__(
        self, orders: Sequence[RunOrder], todo: SimpleQueue[int], said: SimpleQueue[tuple[int, Said]], module: str
    ) -> None:
        self._module = module
        self._orders = orders
        self._todo = todo
        self._said = said
        self._lock = Lock()
        self._ended = False
        self._process: subprocess.Popen[str] | None = None
        self.thread = Thread(target=self._work)
        self.thread.start()

    def end(self) -> None:
        """Also in the middle of a run."""
        with self._lock:
            self._ended = True
            if self._process:
                _kill(self._process)

    def _work(self) -> None:
        with suppress(Empty):
            while not self._ended:
                number = self._todo.get_nowait()
                for word in self._do(self._orders[number]):
                    self._said.put((number, word))
        self._bury()

    def _do(self, order: RunOrder) -> Iterator[Said]:
        """What it says, up to `done` or `failed`."""
        try:
            process = self._awake()
        except OSError as error:
            yield {"event": "failed", "why": f"cannot start a process: {error.strerror or error}"}
            return
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(OSError):  # it is dead, and stdout will say so
            process.stdin.write(order.dump() + "\n")
            process.stdin.flush()
        for line in process.stdout:
            yield (word := json.loads(line))
            if word["event"] != "progress":
                return
        yield {"event": "failed", "why": f"its process {_ending(process.wait())}"}
        self._bury()

    def _awake(self) -> subprocess.Popen[str]:
        with self._lock:
            self._process = self._process or _spawn(self._module)
            if self._ended:
                _kill(self._process)
            return self._process

    def _bury(self) -> None:
        with self._lock:
            if self._process is None:
                return
            process, self._process = self._process, None
        _kill(process)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):  # what could not be written any more
                if pipe:
                    pipe.close()


def _spawn(module: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        start_new_session=True,  # Ctrl-C reaches it through us
        env={**os.environ, **ONE_THREAD},
    )


def _kill(process: subprocess.Popen[str]) -> None:
    """With the processes that a user's code may have started: they would hold the pipe."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _ending(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
