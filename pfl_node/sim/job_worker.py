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
from pfl_node.node.ports import Job
from pfl_node.plugin import in_a_line, line_of
from pfl_node.settings import Settings
from pfl_node.sim.job_pool import Frame, read_frame, result_frame, write_frame
from pfl_node.sim.learner_port import LearnerPort, learners_of
from pfl_node.types import PeerId

Result = tuple[dict[str, Any], Any]


def main() -> None:
    up = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a user's task may print, which must not mix with the results
    orders: SimpleQueue[Frame] = SimpleQueue()
    results: SimpleQueue[Result] = SimpleQueue()
    Thread(target=_listen, args=(sys.stdin.buffer, orders), daemon=True).start()
    Thread(target=_speak, args=(up, results), daemon=True).start()
    facts = orders.get().facts
    load = learners_of(Settings.model_validate(facts["settings"]), facts["nodes"])
    learners: dict[int, LearnerPort] = {}
    while True:
        order = orders.get()
        index = order.facts["node"]
        try:
            if index not in learners:
                learners[index] = load(index, PeerId(order.facts["id"]))
            results.put(_run(order, learners[index]))
        except Exception as error:
            results.put(({"error": _describe_error(error)}, None))


def _run(order: Frame, learner: LearnerPort) -> Result:
    return result_frame(learner, Job(*order.value(learner)).run(learner))


def _describe_error(error: Exception) -> list[str]:
    """The name of a class in `pfl_node.errors`, or an empty string, and a one-line message."""
    if isinstance(error, PflError):
        return [type(error).__name__, str(error)]
    if where := line_of(error):
        return ["TaskError", f"your code failed{where}: {in_a_line(error)}"]
    traceback.print_exception(error)
    return ["", in_a_line(error)]


def _listen(pipe: IO[bytes], orders: SimpleQueue[Frame]) -> None:
    while frame := read_frame(pipe):
        orders.put(frame)
    os._exit(0)  # the parent is gone: abandon the current job


def _speak(pipe: IO[bytes], results: SimpleQueue[Result]) -> None:
    while True:
        write_frame(pipe, *results.get())


if __name__ == "__main__":
    main()
