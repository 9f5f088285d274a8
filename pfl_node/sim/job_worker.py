"""A worker process of a simulation: it runs the jobs of some of the nodes, one at a time, on one thread.

Two more threads read and write the pipes, so that neither end blocks until the other one reads.
"""

from __future__ import annotations

import os
import sys
import traceback
from queue import SimpleQueue
from threading import Thread
from typing import IO, Any

from pfl_node.errors import PflError
from pfl_node.plugin import in_a_line, line_of
from pfl_node.settings import Settings
from pfl_node.sim import job_frames
from pfl_node.sim.learner_port import LearnerPort, learners_of
from pfl_node.types import PeerId

Frame = tuple[dict[str, Any], list[job_frames.Array]]


def main() -> None:
    up = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a user's task may print, which must not mix with the results
    orders: SimpleQueue[Frame] = SimpleQueue()
    results: SimpleQueue[Frame] = SimpleQueue()
    Thread(target=_listen, args=(sys.stdin.buffer, orders), daemon=True).start()
    Thread(target=_speak, args=(up, results), daemon=True).start()
    facts, _ = orders.get()
    load, learners = (
        learners_of(Settings.model_validate(facts["settings"]), facts["nodes"]),
        dict[int, LearnerPort](),
    )
    while True:
        asked, arrays = orders.get()
        index = asked["node"]
        try:
            if index not in learners:
                learners[index] = load(index, PeerId(asked["id"]))
            results.put(_run(asked, arrays, learners[index]))
        except Exception as error:
            results.put(({"number": asked["number"], "error": _told(error)}, []))


def _run(asked: dict[str, Any], arrays: list[job_frames.Array], learner: LearnerPort) -> Frame:
    found: list[job_frames.Array] = []
    answer = job_frames.pack(job_frames.unpack(asked["job"], arrays, learner).run(learner), found)
    account = learner.account
    spent = {"rows": account.rows(), "epsilon": account.epsilon, "exhausted": account.exhausted}
    return {"number": asked["number"], "answer": answer, "spent": spent}, found


def _told(error: Exception) -> list[str]:
    """The name of a class in `pfl_node.errors`, or an empty string, and a one-line message."""
    if isinstance(error, PflError):
        return [type(error).__name__, str(error)]
    if where := line_of(error):
        return ["TaskError", f"your code failed{where}: {in_a_line(error)}"]
    traceback.print_exception(error)
    return ["", in_a_line(error)]


def _listen(pipe: IO[bytes], orders: SimpleQueue[Frame]) -> None:
    while frame := job_frames.read(pipe):
        orders.put(frame)
    os._exit(0)  # the parent is gone: abandon the current job


def _speak(pipe: IO[bytes], results: SimpleQueue[Frame]) -> None:
    while True:
        job_frames.write(pipe, *results.get())


if __name__ == "__main__":
    main()
