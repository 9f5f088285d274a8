"""Both ends of the pipes between a parent and a child process of ours.

Down: one line that says what to do; the end of the pipe means stop, whether the parent wishes it or is dead.
Up: one JSON object a line. What the child prints or logs goes up on stderr and is shown.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import traceback
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from typing import Any, NoReturn

from pfl_node.errors import ConfigError, PflError, TaskError
from pfl_node.plugin import in_a_line, line_of

Said = dict[str, Any]
LINE_LIMIT = 1 << 22  # bytes of one event; a thousand peers' counters fit
SHOW_WAIT = 1.0  # seconds for the last words of a process that has ended
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class ParentPipe:
    """The parent, seen from the child. Make it first: from then on stdout is stderr."""

    def __init__(self) -> None:
        self._up = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)  # a user's task may print

    def order(self) -> str | None:
        """What to do; None: nothing any more."""
        line = sys.stdin.readline()
        return line if line.endswith("\n") else None

    def tell(self, event: str, data: Mapping[str, Any]) -> None:
        with suppress(BrokenPipeError):  # a parent that is dead; the end of stdin says so, too
            self._up.write(json.dumps({"event": event, **data}, default=str) + "\n")
            self._up.flush()

    def failed(self, error: BaseException) -> int:
        """Tells why, in a line; a bug of ours keeps its traceback. The exit code."""
        mistake, text = isinstance(error, ConfigError | TaskError), str(error)
        if not isinstance(error, PflError):
            where, text = line_of(error), in_a_line(error)
            if where:
                mistake, text = True, f"your code failed{where}: {text}"
            else:
                traceback.print_exception(error)
        self.tell("failed", {"error": text, "mistake": mistake})
        return 2 if mistake else 1

    def on_stop(self, do: Callable[[], None]) -> None:
        """Calls it once, in this event loop, when stdin ends."""
        loop, fd = asyncio.get_running_loop(), sys.stdin.fileno()

        def readable() -> None:
            if not os.read(fd, 1024):
                loop.remove_reader(fd)
                do()

        loop.add_reader(fd, readable)


class ChildPipe:
    """A child process, seen from the parent. `order` it, hear it out with `events`, and `close` it in any case."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self.heard = False  # has it said anything?
        self.stopping = False
        self._process = process
        self._shows = asyncio.create_task(self._show())

    @classmethod
    async def spawn(cls, module: str, name: str) -> ChildPipe:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            module,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=LINE_LIMIT,
            start_new_session=True,  # Ctrl-C reaches it through us, in order
            env={**os.environ, **ONE_THREAD},
        )
        return cls(name, process)

    @property
    def pid(self) -> int:
        return self._process.pid

    def order(self, line: str) -> None:
        """The one line that it waits for."""
        assert self._process.stdin is not None
        if not self.stopping:
            self._process.stdin.write(line.encode() + b"\n")

    def stop(self) -> None:
        """It may end in order."""
        assert self._process.stdin is not None
        self.stopping = True
        self._process.stdin.close()

    def kill(self) -> None:
        self.stopping = True
        if self._process.returncode is None:
            self._process.kill()

    async def events(self) -> AsyncIterator[Said]:
        """Until it ends. Raises what it failed with, or that it ended badly, unless that was our wish."""
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            said = json.loads(line)
            if said["event"] == "failed":
                raise (ConfigError if said["mistake"] else PflError)(said["error"])
            self.heard = True
            yield said
        code = await self._process.wait()
        if code and not self.stopping:
            raise PflError(f"{self.name} (process {self.pid}) {_ending(code)}")

    async def close(self) -> None:
        """No process is left, and what it said was shown."""
        self.kill()
        await self._process.wait()
        # A process that the child has started may hold the pipe for ever.
        await asyncio.wait((self._shows,), timeout=SHOW_WAIT)
        self._shows.cancel()
        self.stop()  # gives the pipe back

    async def _show(self) -> None:
        """Whole lines, so that those of two children do not mix."""
        assert self._process.stderr is not None
        rest = b""
        while text := await self._process.stderr.read(1 << 16):
            lines, newline, rest = (rest + text).rpartition(b"\n")
            _write(lines + newline)
        _write(rest)


def _write(text: bytes) -> None:
    if text:
        sys.stderr.write(text.decode(errors="replace"))
        sys.stderr.flush()


def _ending(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"


def leave(code: int = 0) -> NoReturn:
    """End this process without waiting for its threads: one may be importing torch."""
    os._exit(code)
