"""Starts the real commands as processes and makes sure that none is left."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from pfl_node.cli import main
from tests.e2e.preloaded import Preloaded

T = TypeVar("T")
DEADLINE = 90.0  # seconds for anything to happen on a busy machine


class Process:
    """A running command; its output is in a file, so that nothing blocks on a full pipe."""

    def __init__(self, module: str, *words: object, cwd: Path, preloaded: bool = False) -> None:
        self._out = cwd / f"out-{time.monotonic_ns()}"
        self._out.touch()
        self.popen: subprocess.Popen[bytes] | Preloaded
        if preloaded:
            text = [str(word) for word in words]
            self.popen = Preloaded(module, text, cwd=cwd, stdout=self._out, stderr=self._out)
            return
        line = [sys.executable, "-m", module, *map(str, words)]
        with self._out.open("a") as out:
            self.popen = subprocess.Popen(line, stdout=out, stderr=subprocess.STDOUT, cwd=cwd)

    @property
    def output(self) -> str:
        return self._out.read_text()

    def says(self, word: str) -> str:
        """Waits for a line with the word."""
        return until(lambda: next((line for line in self.output.splitlines() if word in line), None), self)

    @property
    def listening(self) -> dict[str, Any]:
        """What it told of itself when its port was open."""
        told: dict[str, Any] = json.loads(self.says('"event": "listening"'))
        return told

    @property
    def address(self) -> str:
        return str(self.listening["address"])

    def wait(self) -> int:
        return self.popen.wait(DEADLINE)

    def close(self) -> None:
        if self.popen.poll() is None:
            self.popen.kill()
            self.popen.wait()


def until(look: Callable[[], T | None], process: Process | None = None) -> T:
    """The first answer that is something; fails with the process's output when it takes too long."""
    end = time.monotonic() + DEADLINE
    while time.monotonic() < end:
        if found := look():
            return found
        if process and process.popen.poll() is not None:
            break
        time.sleep(0.05)
    raise AssertionError(f"did not happen; the process said:\n{process.output if process else ''}")


@contextmanager
def processes(cwd: Path, *, preloaded: bool = False) -> Iterator[Callable[..., Process]]:
    """Gives a function that starts processes, and ends them all. `preloaded`: nodes have torch when they start."""
    started: list[Process] = []

    def start(module: str, *words: object) -> Process:
        started.append(Process(module, *words, cwd=cwd, preloaded=preloaded and module == "pfl_node"))
        return started[-1]

    try:
        yield start
    finally:
        for process in started:
            process.close()


def command(*words: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs `pfl-node WORDS` to its end, in a new interpreter."""
    line = [sys.executable, "-m", "pfl_node", *map(str, words)]
    return subprocess.run(line, capture_output=True, text=True, timeout=DEADLINE * 4, cwd=cwd, check=False)


def preloaded_command(*words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Runs `pfl-node WORDS` to its end, in a process that has imported torch before."""
    text = [str(word) for word in words]
    with TemporaryDirectory() as folder:
        out, err = Path(folder, "stdout"), Path(folder, "stderr")
        process = Preloaded("pfl_node", text, cwd=cwd, stdout=out, stderr=err)
        try:
            code = process.wait(DEADLINE * 4)
        finally:
            process.kill()
        return subprocess.CompletedProcess(text, code, out.read_text(), err.read_text())


def own_process_command(*words: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs `pfl-node WORDS` to its end in the test's own process: for verbs that read, and for mistakes."""
    text, out, err = [str(word) for word in words], io.StringIO(), io.StringIO()
    with chdir(cwd or Path.cwd()), redirect_stdout(out), redirect_stderr(err):
        code = main(text)
    return subprocess.CompletedProcess(text, code, out.getvalue(), err.getvalue())


def ask(*words: object) -> Any:
    """The JSON that a reading verb prints."""
    done = own_process_command(*words, "--format", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def states(address: str, role: str = "node") -> dict[str, str]:
    """What the member at this address thinks of the others."""
    return {p["id"]: p["state"] for p in ask("peers", address)["peers"] if p["role"] == role}


def fast(*, policy: Sequence[str] = ()) -> list[str]:
    """Settings with which a small swarm is quick."""
    words = ["task.samples=40", *policy]
    return [w for word in words for w in ("--set", word)]
