"""Processes of this machine as a `concurrent.futures.Executor`.

Each slot is a ProcessPoolExecutor with one process, so a process that dies takes only its own job with it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from threading import Thread, local
from time import monotonic, sleep
from typing import Any, ParamSpec, TypeVar

from pfl_node.learning.kernels import worker_environment
from pfl_node.sim.worker_process import write_stderr

P = ParamSpec("P")
T = TypeVar("T")
SPAWN = multiprocessing.get_context("spawn")  # a fork would inherit the locks of torch and gRPC
EXIT = 5.0  # seconds to wait for the exit code of a process
_environment = threading.Lock()


class ProcessExecutor(Executor):
    """`shutdown(wait=False)` abandons the running jobs: a process gets SIGTERM, and after `grace` seconds SIGKILL.
    So does every process if this one dies. Without `reuse`, each job has a new process."""

    def __init__(self, workers: int, *, reuse: bool = True, grace: float = 0.0) -> None:
        self._threads = ThreadPoolExecutor(workers, initializer=_ignore_interrupts)
        self._local = local()  # the slot of a thread
        self._slots: set[WorkerSlot] = set()
        self._reuse = reuse
        self._grace = grace
        self._stopping = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        return self._threads.submit(self._run, fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        if not wait:
            self._stopping = True
            for slot in list(self._slots):
                slot.stop()
        self._threads.shutdown(wait=True, cancel_futures=cancel_futures or not wait)
        for slot in list(self._slots):
            slot.close()
        self._slots.clear()

    def _run(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        slot = getattr(self._local, "slot", None)
        if slot is None:
            slot = self._local.slot = WorkerSlot(self._grace)
            self._slots.add(slot)
        ended = not self._reuse
        try:
            if self._stopping:
                raise BrokenProcessPool("stopped")
            return slot.run(fn, *args, **kwargs)
        except BrokenProcessPool:
            ended = True
            raise
        finally:
            if ended:
                slot.close()
                self._slots.discard(slot)
                self._local.slot = None


class WorkerSlot:
    """One process. It is started with its first job."""

    def __init__(self, grace: float) -> None:
        self._ours, self._theirs = SPAWN.Pipe()
        self._stderr, theirs = SPAWN.Pipe(duplex=False)
        self._child_ends = (self._theirs, theirs)
        self._pool = ProcessPoolExecutor(1, SPAWN, _begin, (self._theirs, theirs, grace))
        self._process: multiprocessing.process.BaseProcess | None = None
        self._reader = Thread(target=_forward, args=(self._stderr,), daemon=True)

    def run(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        with _set(worker_environment()):  # before the process loads numpy and torch
            future = self._pool.submit(fn, *args, **kwargs)
        if self._process is None:
            for end in self._child_ends:
                end.close()
            self._reader.start()
            with suppress(EOFError, OSError):
                pid = self._ours.recv()
                self._process = next((p for p in multiprocessing.active_children() if p.pid == pid), None)
        try:
            return future.result()
        except BrokenProcessPool:
            raise BrokenProcessPool(self._ending()) from None

    def stop(self) -> None:
        self._ours.close()  # the process then reads EOF

    def close(self) -> None:
        self.stop()
        for end in self._child_ends:
            end.close()
        self._pool.shutdown()
        if self._reader.is_alive():
            self._reader.join(timeout=1.0)  # a process detached by a user's code may keep the pipe open

    def _ending(self) -> str:
        if self._process is None:
            return "its process could not be started"
        code, until = None, monotonic() + EXIT
        while code is None and monotonic() < until:  # None until the pool's thread has stored it
            with suppress(AssertionError, ValueError):
                self._process.join(timeout=0.05)
                code = self._process.exitcode
            sleep(0.001)
        if code is None:
            return "its process ended"
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        return f"its process {how}"


def _ignore_interrupts() -> None:
    """Processes inherit the signal mask of the thread that starts them. Ctrl-C is the parent's to handle."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


@contextmanager
def _set(variables: dict[str, str]) -> Iterator[None]:
    """Set environment variables while a process of a pool starts: it inherits the environment of its parent."""
    with _environment:
        before = {name: os.environ.get(name) for name in variables}
        os.environ.update(variables)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


def _forward(pipe: Connection) -> None:
    """Copy whole lines, so that the output of two processes does not mix."""
    rest = b""
    with pipe:
        while text := os.read(pipe.fileno(), 1 << 16):
            lines, newline, rest = (rest + text).rpartition(b"\n")
            write_stderr(lines + newline)
        write_stderr(rest)


# -- in the process --------------------------------------------------------------------------------------------


def _begin(parent: Connection, stderr: Connection, grace: float) -> None:
    """Send the output and logs of jobs to the parent's stderr."""
    os.setsid()
    os.dup2(stderr.fileno(), 2)
    os.dup2(2, 1)  # a user's task may print
    stderr.close()
    parent.send(os.getpid())
    Thread(target=_end_with, args=(parent, grace), daemon=True).start()


def _end_with(parent: Connection, grace: float) -> None:
    """End this process, and those that a user's code started in it, when the parent closes the pipe or dies."""
    with suppress(EOFError, OSError):
        parent.recv()
    if grace:
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(grace)
    os.killpg(0, signal.SIGKILL)
