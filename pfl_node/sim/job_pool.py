"""Runs the jobs of simulated nodes: in this process on submission, or in worker processes until the caller
collects the result, when it is due in virtual time. The results are the same.

A frame on a worker's pipe is a line of JSON and the raw bytes of the arrays it refers to. No pickle.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from subprocess import PIPE, Popen
from typing import IO, TYPE_CHECKING, Any, Protocol

import numpy as np

from pfl_node import errors
from pfl_node.errors import PflError
from pfl_node.learning.kernels import worker_environment
from pfl_node.model import Array
from pfl_node.node.ports import TRAINING, Job, LearnerFacts, Trained
from pfl_node.settings import Settings
from pfl_node.store.policy_state import freeze, thaw
from pfl_node.types import PeerId

if TYPE_CHECKING:
    from pfl_node.sim.learner_port import LearnerPort

MODULE = "pfl_node.sim.job_worker"
Result = Callable[[], Any]  # blocks until the job is done


@dataclass(frozen=True, slots=True)
class Frame:
    facts: dict[str, Any]
    frozen: Any
    arrays: dict[str, Array]

    def value(self, learner: LearnerFacts) -> Any:
        """The learner provides the layouts of its models."""
        return thaw(self.frozen, self.arrays, learner.layout, learner.predictions)


def write_frame(pipe: IO[bytes], facts: dict[str, Any], value: Any = None) -> None:
    frozen, arrays = freeze(value)
    shapes = {name: [a.dtype.str, list(a.shape)] for name, a in arrays.items()}
    pipe.write(json.dumps([facts, frozen, shapes]).encode() + b"\n")
    for array in arrays.values():
        pipe.write(np.ascontiguousarray(array).data)
    pipe.flush()


def read_frame(pipe: IO[bytes]) -> Frame | None:
    """Read one frame; None: the other end closed the pipe."""
    line = pipe.readline()
    if not line.endswith(b"\n"):
        return None
    facts, frozen, shapes = json.loads(line)
    arrays = {}
    for name, (kind, shape) in shapes.items():
        size = prod(shape) * np.dtype(kind).itemsize
        if len(data := pipe.read(size)) != size:
            return None
        arrays[name] = np.frombuffer(data, np.dtype(kind)).reshape(shape)
    return Frame(facts, frozen, arrays)


def skip_frame(file: IO[bytes]) -> dict[str, Any] | None:
    """The facts of the next frame of a file, without its arrays; None: the file ends before the frame does."""
    line = file.readline()
    if not line.endswith(b"\n"):
        return None
    facts, _, shapes = json.loads(line)
    size = sum(prod(shape) * np.dtype(kind).itemsize for kind, shape in shapes.values())
    end = file.seek(size, os.SEEK_CUR)
    found: dict[str, Any] = facts
    return found if end <= os.fstat(file.fileno()).st_size else None


# -- the result of a job as a frame ----------------------------------------------------------------------------


def result_frame(learner: LearnerPort, answer: Any) -> tuple[dict[str, Any], Any]:
    """The facts and the value of the frame of a job that the learner has just run."""
    account = learner.account
    spent = {"rows": account.rows(), "epsilon": account.epsilon, "exhausted": account.exhausted}
    return {"spent": spent}, (answer.model, answer.state) if isinstance(answer, Trained) else answer


def answer_of(frame: Frame, learner: LearnerPort, job: Job) -> Any:
    """The result of a job that ran elsewhere. This learner's privacy account becomes that of the other one."""
    account, spent = learner.account, frame.facts["spent"]
    account.steps.clear()
    for row in spent["rows"]:
        account.load(row)
    account.epsilon, account.exhausted = spent["epsilon"], spent["exhausted"]
    found = frame.value(learner)
    return Trained(*found) if job.state is not None and job.kind in TRAINING else found


# -- where jobs run --------------------------------------------------------------------------------------------


class Jobs(Protocol):
    def submit(self, node: PeerId, learner: LearnerPort, job: Job) -> Result: ...
    def close(self) -> None: ...


class Inline:
    """Runs each job in this process on submission."""

    def submit(self, node: PeerId, learner: LearnerPort, job: Job) -> Result:  # noqa: ARG002
        answer = job.run(learner)
        return lambda: answer

    def close(self) -> None: ...


class JobPool:
    """A fixed set of worker processes. All jobs of a node go, in order, to the worker that holds its learner."""

    def __init__(self, settings: Settings, ids: Sequence[PeerId], workers: int) -> None:
        self._index = {id: index for index, id in enumerate(ids)}
        config = {"settings": settings.model_dump(mode="json"), "nodes": len(ids)}
        self._workers = [Worker(config) for _ in range(workers)]

    def submit(self, node: PeerId, learner: LearnerPort, job: Job) -> Result:
        if job.kind == "reload":  # reload both learners: the node reads properties of this one
            Inline().submit(node, learner, job)
        if job.kind in ("fresh", "start"):  # its result is needed at once
            return Inline().submit(node, learner, job)
        index = self._index[node]
        return self._workers[index % len(self._workers)].submit(index, node, learner, job)

    def close(self) -> None:
        for worker in self._workers:
            worker.close()


class Worker:
    """One worker process. It returns results in the order of submission."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._process = Popen(
            [sys.executable, "-m", MODULE],
            stdin=PIPE,
            stdout=PIPE,
            start_new_session=True,
            env={**os.environ, **worker_environment()},
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._down, self._up = self._process.stdin, self._process.stdout
        self._submitted = self._received = 0
        self._answers: dict[int, Frame] = {}  # received and not yet collected
        write_frame(self._down, config)

    def submit(self, index: int, node: PeerId, learner: LearnerPort, job: Job) -> Result:
        number = self._submitted
        self._submitted += 1
        with suppress(OSError):  # the worker is dead: `_result` reports it
            fields = (job.kind, job.models, dict(job.options), job.state)
            write_frame(self._down, {"node": index, "id": node}, fields)
        return lambda: self._result(number, learner, job)

    def _result(self, number: int, learner: LearnerPort, job: Job) -> Any:
        while number not in self._answers:
            frame = read_frame(self._up)
            if frame is None:
                raise PflError("a worker process of the simulation ended before its job was done")
            self._answers[self._received] = frame
            self._received += 1
        answer = self._answers.pop(number)
        facts = answer.facts
        if "error" in facts:
            name, text = facts["error"]
            raise getattr(errors, name, RuntimeError)(text)
        return answer_of(answer, learner, job)

    def close(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._down, self._up):
            with suppress(OSError):
                pipe.close()
