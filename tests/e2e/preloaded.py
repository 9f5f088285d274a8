"""Commands in processes that are forked from one which has imported torch: each saves two seconds of CPU.

The fork server of multiprocessing starts as a new program and only imports, so no thread is lost in a fork. From
then on, a process is like any other: own memory, files, sockets and signals. Tests of what happens while a program
starts need a new interpreter instead: `running.command`, or `running.processes` without `preloaded`.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(
    ["torch", "sklearn.datasets", "pfl_node.learning.learner", "pfl_node.learning.digits", "pfl_node.cli"]
)


class Preloaded:
    """`python -m MODULE WORDS`: the part of Popen that tests need."""

    def __init__(self, module: str, words: Sequence[str], *, cwd: Path, stdout: Path, stderr: Path) -> None:
        arguments = (module, words, cwd, stdout, stderr, dict(os.environ))
        self._process = _server.Process(target=_run, args=arguments)
        self._process.start()
        assert self._process.pid
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            assert timeout
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class PreloadedWorker:
    """`python -m MODULE` between two pipes: the part of Popen that `JobPool` needs."""

    def __init__(self, words: Sequence[str], *, env: Mapping[str, str], **_: Any) -> None:
        (orders, down), (up, results) = _server.Pipe(duplex=False), _server.Pipe(duplex=False)
        self._process = _server.Process(target=_work, args=(words[-1], orders, results, dict(env)))
        self._process.start()
        for end in (orders, results):
            end.close()
        self.pid = self._process.pid
        self.stdin, self.stdout = _file(down, "wb"), _file(up, "rb")

    def wait(self) -> None:
        self._process.join()


def _file(end: Connection, mode: str) -> IO[Any]:
    with end:
        return os.fdopen(os.dup(end.fileno()), mode)


def _work(module: str, orders: Connection, results: Connection, environment: dict[str, str]) -> None:
    """The new process, to its end."""
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    os.dup2(orders.fileno(), 0)
    os.dup2(results.fileno(), 1)
    for end in (orders, results):
        end.close()
    sys.stdin = open(0)  # noqa: SIM115
    importlib.import_module(module).main()


def _run(
    module: str, words: Sequence[str], cwd: Path, stdout: Path, stderr: Path, environment: dict[str, str]
) -> None:
    """The new process, to its end."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, path in ((1, stdout), (2, stderr)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), number)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)  # noqa: SIM115
    sys.argv = [f"{module}/__main__.py", *words]
    sys.exit(importlib.import_module(f"{module}.__main__").main())
