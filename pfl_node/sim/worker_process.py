"""Both ends of the pipes between a process and a worker process that it started.

The parent sends orders, one per line; the end of the pipe means stop, whether the parent closed it or died. The
worker sends messages, one JSON object per line. Its output and logs appear on the parent's stderr.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from typing import Any, NoReturn, Self

from pydantic import TypeAdapter

from pfl_node.errors import ConfigError, PflError
from pfl_node.learning.kernels import worker_environment
from pfl_node.plugin import explain

Message = dict[str, Any]  # `event` and its data
LINE_LIMIT = 1 << 22  # bytes of one message; the counters of a thousand peers fit
STDERR_WAIT = 1.0  # seconds to read the stderr of a process that has ended
PROGRESS_EVERY = 0.1  # seconds between two progress messages
SIMULATE = "pfl_node.sim.sim_worker"


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class JsonOrder:
    """A base for dataclasses that are sent as one line of JSON."""

    def dump(self) -> str:
        return json.dumps(TypeAdapter(type(self)).dump_python(self, mode="json"))

    @classmethod
    def load(cls, line: str) -> Self:
        return TypeAdapter(cls).validate_python(json.loads(line))


# -- in the worker ---------------------------------------------------------------------------------------------


class ParentPipe:
    """The worker's end. Create it first: from then on stdout is stderr, because a user's task may print."""

    def __init__(self) -> None:
        self._up = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        self._progress_at = 0.0

    def order(self) -> str | None:
        """The next order; None: the parent has closed the pipe."""
        line = sys.stdin.readline()
        return line if line.endswith("\n") else None

    def send(self, event: str, **data: Any) -> None:
        with suppress(BrokenPipeError):  # the parent is dead; the worker notices at the end of stdin
            self._up.write(json.dumps({"event": event, **data}, default=str) + "\n")
            self._up.flush()

    def progress(self, measure: Callable[[], Mapping[str, Any]]) -> None:
        """Send progress, at most once every PROGRESS_EVERY seconds."""
        if (now := time.monotonic()) >= self._progress_at + PROGRESS_EVERY:
            self._progress_at = now
            self.send("progress", **measure())

    def failed(self, error: BaseException) -> int:
        """Send the reason in one line and return the exit code. A bug of ours also prints its traceback."""
        found = explain(error)
        if found.bug:
            traceback.print_exception(error)
        self.send("failed", why=found.line, mistake=found.mistake)
        return 2 if found.mistake else 1

    def on_stop(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, in the running event loop, when stdin ends."""
        loop, fd = asyncio.get_running_loop(), sys.stdin.fileno()

        def readable() -> None:
            if not os.read(fd, 1024):
                loop.remove_reader(fd)
                callback()

        loop.add_reader(fd, readable)


def serve_once(run: Callable[[str, ParentPipe], None]) -> int:
    """Run a single order. Returns the exit code."""
    parent = ParentPipe()
    if (order := parent.order()) is None:
        return 0
    try:
        run(order, parent)
    except BaseException as error:
        return parent.failed(error)
    return 0


def leave(code: int = 0) -> NoReturn:
    """End this process without waiting for its threads: one may be importing torch."""
    os._exit(code)


# -- in the parent ---------------------------------------------------------------------------------------------


class WorkerProcess:
    """The parent's end. The caller of `spawn` must `close` it."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self.responded = False  # has it sent a message?
        self.stopping = False
        self._process = process
        self._stderr = asyncio.create_task(self._forward_stderr())

    @classmethod
    async def spawn(cls, module: str, name: str = "the worker") -> WorkerProcess:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            module,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=LINE_LIMIT,
            start_new_session=True,  # Ctrl-C reaches the parent alone, which stops its workers
            env={**os.environ, **worker_environment()},
        )
        return cls(name, process)

    @property
    def pid(self) -> int:
        return self._process.pid

    def order(self, line: str) -> None:
        assert self._process.stdin is not None
        if not self.stopping:
            self._process.stdin.write(line.encode() + b"\n")

    def stop(self) -> None:
        """Ask the worker to shut down."""
        assert self._process.stdin is not None
        self.stopping = True
        self._process.stdin.close()

    def kill(self) -> None:
        """Kill the worker and the processes that a user's code started in it: they would keep its pipes open."""
        self.stopping = True
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    async def receive(self) -> Message | None:
        """The next message; None: the process has ended."""
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line.endswith(b"\n"):
            return None
        self.responded = True
        message: Message = json.loads(line)
        return message

    async def messages(self) -> AsyncIterator[Message]:
        """Yield messages until the process ends. Raise PflError if it failed or died without being stopped."""
        while (message := await self.receive()) is not None:
            if message["event"] == "failed":
                raise (ConfigError if message["mistake"] else PflError)(message["why"])
            yield message
        if await self._process.wait() and not self.stopping:
            raise PflError(f"{self.name} (process {self.pid}) {await self.ending()}")

    async def ending(self) -> str:
        """Wait for the process and say how it ended."""
        code = await self._process.wait()
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"

    async def close(self, grace: float = 0.0) -> None:
        """Stop the process, kill it after `grace` seconds, and show the rest of its stderr."""
        self.stop()
        if grace:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), grace)
        self.kill()
        await self._process.wait()
        # A process detached by a user's code may keep the pipe open.
        await asyncio.wait((self._stderr,), timeout=STDERR_WAIT)
        self._stderr.cancel()

    async def _forward_stderr(self) -> None:
        """Copy whole lines, so that the output of two workers does not mix."""
        assert self._process.stderr is not None
        rest = b""
        while text := await self._process.stderr.read(1 << 16):
            lines, newline, rest = (rest + text).rpartition(b"\n")
            write_stderr(lines + newline)
        write_stderr(rest)


def write_stderr(text: bytes) -> None:
    if text:
        sys.stderr.write(text.decode(errors="replace"))
        sys.stderr.flush()
