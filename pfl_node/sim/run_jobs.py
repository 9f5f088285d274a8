"""Independent jobs, submitted to any `concurrent.futures.Executor`, with their progress.

A job is a function in a module and an order in JSON. Its progress is a small file in a directory that submitter
and worker share, because an Executor returns results only.
"""

from __future__ import annotations

import json
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pfl_node.plugin import explain, in_a_line
from pfl_node.sim.worker_process import JsonOrder

Message = dict[str, Any]  # `event` and its data
OnMessage = Callable[[int, Message], None]  # a message about the order of that number
Measure = Callable[[], Mapping[str, Any]]
OnProgress = Callable[[Measure], None]
Run = Callable[[str, OnProgress], Any]  # called with an order and a progress callback; returns JSON values

EVERY = 0.2  # seconds between two records of progress
POLL = 0.1  # seconds


def run_all(
    run: Run,
    orders: Sequence[JsonOrder],
    executor: Executor,
    scratch: Path,
    on_message: OnMessage,
    *,
    attempts: int = 1,
) -> list[Message]:
    """The last message about each order, `done` or `failed`. A job whose worker dies is submitted again, up to
    `attempts` times in all; each loss is a message `lost`. If this is interrupted, the jobs are abandoned."""
    jobs = RunJobs(run, orders, executor, scratch, on_message, attempts)
    try:
        return jobs.run()
    except BaseException:
        executor.shutdown(wait=False)
        raise


@dataclass
class RunJobs:
    task: Run
    orders: Sequence[JsonOrder]
    executor: Executor
    scratch: Path
    on_message: OnMessage
    attempts: int
    futures: dict[Future[Message], int] = field(default_factory=dict)  # jobs that are not done
    tried: Counter[int] = field(default_factory=Counter)
    seen: dict[int, Message] = field(default_factory=dict)
    last: dict[int, Message] = field(default_factory=dict)

    def run(self) -> list[Message]:
        for number in range(len(self.orders)):
            self._submit(number)
        while self.futures:
            done, _ = wait(self.futures, timeout=POLL, return_when=FIRST_COMPLETED)
            for future in sorted(done, key=self.futures.__getitem__):
                self._ended(self.futures.pop(future), future)
            for number in sorted(self.futures.values()):
                self._progress(number)
        return [message for _, message in sorted(self.last.items())]

    def _submit(self, number: int) -> None:
        self.tried[number] += 1
        self._place(number).unlink(missing_ok=True)
        order, place = self.orders[number].dump(), str(self._place(number))
        self.futures[self.executor.submit(attempt, self.task, order, place)] = number

    def _place(self, number: int) -> Path:
        return self.scratch / f"{number}.json"

    def _ended(self, number: int, future: Future[Message]) -> None:
        try:
            message = future.result()
        except BrokenExecutor as error:
            if self.tried[number] < self.attempts:
                self.on_message(number, {"event": "lost", "why": str(error)})
                self._submit(number)
                return
            message = failed(str(error))
        except Exception as error:  # the executor's scheduler gave up
            message = failed(in_a_line(error))
        self.last[number] = message
        self.on_message(number, message)

    def _progress(self, number: int) -> None:
        with suppress(OSError, ValueError):
            now = json.loads(self._place(number).read_bytes())
            if now != self.seen.get(number):
                self.seen[number] = now
                self.on_message(number, now)


def failed(why: str, *, mistake: bool = False) -> Message:
    return {"event": "failed", "why": why, "mistake": mistake}


# -- in the worker ---------------------------------------------------------------------------------------------


def attempt(run: Run, order: str, place: str) -> Message:
    """An error is a message: the submitter may be unable to load its class. A bug of ours also prints its
    traceback."""
    try:
        return {"event": "done", "summary": run(order, ProgressFile(Path(place)))}
    except Exception as error:
        found = explain(error)
        if found.bug:
            traceback.print_exception(error)
        return failed(found.line, mistake=found.mistake)
    finally:
        with suppress(OSError):
            Path(place).unlink(missing_ok=True)


class ProgressFile:
    """Writes progress, at most once every EVERY seconds. It need not survive a crash."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._next = 0.0

    def __call__(self, measure: Measure) -> None:
        if (now := time.monotonic()) < self._next:
            return
        self._next = now + EVERY
        temporary = self._path.with_suffix(".part")
        with suppress(OSError):
            temporary.write_text(json.dumps({"event": "progress", **measure()}), encoding="utf-8")
            temporary.replace(self._path)
