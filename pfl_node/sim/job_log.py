"""A log of the results of a run's jobs, from which an interrupted simulation resumes.

A simulation is determined by its settings and the results of its jobs, and the jobs are most of its work. So a
process that continues a run simulates it from the beginning, takes the results that earlier processes logged, and
runs the remaining jobs. The result is that of an uninterrupted run for every policy, because nothing is held.

Each process of a run writes a file of its own: a line that identifies the run, then one frame per job.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from xxhash import xxh3_64

from pfl_node.model import Array
from pfl_node.node.ports import Job
from pfl_node.sim.job_pool import (
    Frame,
    Inline,
    Result,
    answer_of,
    read_frame,
    result_frame,
    skip_frame,
    write_frame,
)
from pfl_node.sim.learner_port import LearnerPort
from pfl_node.store.policy_state import freeze
from pfl_node.types import PeerId

FORMAT = "pfl-node jobs 1"
FILES = "jobs-*"
NOT_LOGGED = ("fresh", "start", "reload")  # quick, or with an effect on the learner
LIMIT = 8 << 30  # bytes of one run's log
RESERVE = 4 << 30  # bytes of the disk that stay free
CHECK = 1.0  # seconds between two checks of the disk and of the owner
DAMAGED = (ValueError, TypeError, KeyError, AttributeError)  # errors of parsing a damaged frame


class Stopwatch:
    """The wall and CPU seconds that a run has taken, over all its processes."""

    def __init__(self, wall: float = 0.0, cpu: float = 0.0) -> None:
        self.set(wall, cpu)

    def set(self, wall: float, cpu: float) -> None:
        self._wall, self._cpu = time.perf_counter() - wall, time.process_time() - cpu

    def read(self) -> tuple[float, float]:
        return time.perf_counter() - self._wall, time.process_time() - self._cpu


class FramePosition(NamedTuple):
    """The position of a frame."""

    path: Path
    offset: int


class JobLog:
    """Runs jobs in this process and logs their results. A job whose result is in the log does not run again."""

    def __init__(
        self, folder: Path, writer: str, run: str, stopwatch: Stopwatch, check_owner: Callable[[], None]
    ) -> None:
        """`run` identifies the run and the code; logs of another one are deleted."""
        self._header = json.dumps({"format": FORMAT, "run": run}).encode() + b"\n"
        self._stopwatch, self._check_owner = stopwatch, check_owner
        self._inline = Inline()
        self._submitted = 0
        self._places: dict[int, FramePosition] = {}  # by number of the job
        files = sorted(folder.glob(FILES), key=lambda file: file.stat().st_mtime)
        for file in files:  # of two results of a job, the later one counts: the earlier one was of no use
            self._places |= dict(self._frames(file))
        self._size = sum(file.stat().st_size for file in files if file.exists())
        self._path = folder / FILES.replace("*", writer)
        self._out: IO[bytes] | None = None
        self._sources: dict[Path, IO[bytes]] = {}
        self._full = False
        self._checked = time.monotonic()

    def submit(self, node: PeerId, learner: LearnerPort, job: Job) -> Result:
        if job.kind in NOT_LOGGED:
            return self._inline.submit(node, learner, job)
        number, digest = self._submitted, _digest(node, job)
        self._submitted += 1
        if frame := self._logged(number, digest):
            self._stopwatch.set(*frame.facts["took"])
            answer = answer_of(frame, learner, job)
        else:
            answer = job.run(learner)
            spent, value = result_frame(learner, answer)
            self._append({"number": number, "job": digest, "took": self._stopwatch.read(), **spent}, value)
        return lambda: answer

    def close(self) -> None:
        for file in (*self._sources.values(), self._out):
            if file:
                file.close()

    def _frames(self, path: Path) -> Iterator[tuple[int, FramePosition]]:
        """The complete frames of a file."""
        with path.open("rb") as file:
            if file.readline() != self._header:
                path.unlink()
                return
            try:
                place = FramePosition(path, file.tell())
                while facts := skip_frame(file):
                    yield facts["number"], place
                    place = FramePosition(path, file.tell())
            except DAMAGED:
                return

    def _logged(self, number: int, digest: str) -> Frame | None:
        """The result of this job; None: it is not in the log, or damaged."""
        if (place := self._places.get(number)) is None:
            return None
        if place.path not in self._sources:
            self._sources[place.path] = place.path.open("rb")
        file = self._sources[place.path]
        file.seek(place.offset)
        try:
            frame = read_frame(file)
        except DAMAGED:
            return None
        if frame is None or frame.facts["job"] != digest:
            return None
        return frame if frame.facts["sum"] == _checksum(frame.frozen, frame.arrays) else None

    def _append(self, facts: Mapping[str, Any], value: Any) -> None:
        """A result that is not written is computed again if the run is interrupted."""
        if time.monotonic() > self._checked + CHECK:
            self._check_owner()
            self._full |= self._size > LIMIT or shutil.disk_usage(self._path.parent).free < RESERVE
            self._checked = time.monotonic()
        if self._full:
            return
        try:
            if self._out is None:
                self._out = self._path.open("wb")
                self._out.write(self._header)
            before = self._out.tell()
            write_frame(self._out, {**facts, "sum": _checksum(*freeze(value))}, value)
            self._size += self._out.tell() - before
        except OSError:  # a frame that is not complete ends the file
            self._full = True


def _digest(node: PeerId, job: Job) -> str:
    """Identifies a job by everything that its result depends on, besides the node's data."""
    frozen, arrays = freeze((job.models, dict(job.options), job.state))
    return _checksum([node, job.kind, frozen], arrays)


def _checksum(frozen: Any, arrays: Mapping[str, Array]) -> str:
    found = xxh3_64(json.dumps(frozen).encode())
    for array in arrays.values():
        found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()
