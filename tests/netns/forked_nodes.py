"""Nodes as processes forked from one that has loaded torch: fifty then fit into a small machine.

From there on they are like all others: own memory, own sockets, own files, and kill -9 kills one of them.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from tests.netns.tun import enter

LOADED = (
    "torch",
    "sklearn.datasets",
    "pfl_node.cli",
    "pfl_node.daemon.process",
    "pfl_node.learning.learner",
    "pfl_node.learning.digits",
)


def load() -> None:
    """Everything that a node imports, once. Nothing may run yet: threads do not survive a fork."""
    os.environ.update({"OMP_NUM_THREADS": "1", "GRPC_VERBOSITY": "NONE"})
    for name in LOADED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()


class Forked:
    """`pfl-node WORDS` in a process of its own. The part of Popen that the lab needs."""

    def __init__(self, words: Sequence[str], *, namespace: int, log: Path, cwd: Path) -> None:
        self._code: int | None = None
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if not self.pid:
            _live(words, namespace, log, cwd)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def poll(self) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code

    def wait(self, timeout: float) -> int:
        end = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise TimeoutError(f"process {self.pid} has not ended within {timeout:g} s")
            time.sleep(0.02)
        return code


def _live(words: Sequence[str], namespace: int, log: Path, cwd: Path) -> None:
    """The new process, to its end."""
    code = 70
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        enter(namespace)
        os.closerange(3, 1 << 12)  # the lab's own
        os.chdir(cwd)
        said = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(said, 1)
        os.dup2(said, 2)
        sys.argv = ["pfl-node", *words]
        code = _main()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _main() -> int:
    from pfl_node.cli import main

    try:
        return main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
