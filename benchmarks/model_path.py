"""The files that handle one model: from `Train` on node A to `Average` on node B, and one `Send`.

    python -m benchmarks.model_path

Runs a small simulation and follows one model: a file counts when one of its functions is called with the model, or
with a step, an offer or a job that carries it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import pfl_node
from benchmarks.report import show
from pfl_node.model import Model
from pfl_node.node.learn import LearningSteps
from pfl_node.settings import Settings
from pfl_node.sim.simulate import simulate
from pfl_node.steps import Average, Send

ROOT = Path(pfl_node.__file__).parent


class Follower:
    """A profile function. Follows the first model that a node trains until another node averages it."""

    def __init__(self) -> None:
        self.model: Model | None = None
        self.trainer = ""  # the node that trained it
        self.path: dict[str, None] = {}  # files, in the order of their first call
        self.send: dict[str, None] = {}
        self._sent = False

    def __call__(self, frame: FrameType, event: str, result: Any) -> None:
        file = frame.f_code.co_filename
        if not file.startswith(str(ROOT)) or self.done:
            return
        name = str(Path(file).relative_to(ROOT))
        if self.model is None:
            self._begin(frame, event, result, name)
        elif event == "call" and any(carries(value, self.model) for value in frame.f_locals.values()):
            self._visit(frame, name)

    @property
    def done(self) -> bool:
        return bool(self.path) and self.path.get("", 0) is None

    def _begin(self, frame: FrameType, event: str, result: Any, name: str) -> None:
        """The first trained model is the return value of the step's answer."""
        steps = frame.f_locals.get("self")
        if event == "return" and frame.f_code.co_name == "_train" and isinstance(result, Model):
            assert isinstance(steps, LearningSteps)
            self.model, self.trainer = result, steps.policy.me
            self.path[name] = None

    def _visit(self, frame: FrameType, name: str) -> None:
        averaging = averages(frame)
        if averaging == self.trainer:  # its own average is not on the way to B
            return
        self.path[name] = None
        if averaging is not None:
            self.path[""] = None  # the end
            sys.setprofile(None)
            return
        if "/" in name and isinstance(find(frame, "step"), Send | None) and not self._sent:
            self._hand_over(frame, name)

    def _hand_over(self, frame: FrameType, name: str) -> None:
        """A file is part of a `Send` when it passes the model on to another file, up to the mailbox."""
        caller = frame.f_back
        while caller is not None and caller.f_code.co_filename.startswith(str(ROOT)):
            before = str(Path(caller.f_code.co_filename).relative_to(ROOT))
            if before != name and "/" in before and not before.startswith("policies/"):
                self.send[before] = None
            caller = caller.f_back
        if name == "protocol/mailbox.py":
            self.send[name] = None
            self._sent = True


def find(frame: FrameType | None, name: str) -> Any:
    """The nearest local variable of that name in the calls that led here."""
    while frame is not None:
        if name in frame.f_locals:
            return frame.f_locals[name]
        frame = frame.f_back
    return None


def averages(frame: FrameType | None) -> str | None:
    """The node whose `Average` this call is part of."""
    while frame is not None:
        steps = frame.f_locals.get("self")
        if isinstance(steps, LearningSteps) and isinstance(frame.f_locals.get("step"), Average):
            return steps.policy.me
        frame = frame.f_back
    return None


def carries(value: Any, model: Model) -> bool:
    """A model that is a view of the same numbers counts as the same model."""
    vectors = (getattr(part, "vector", None) for part in parts(value) if isinstance(part, Model))
    return any(vector is not None and np.may_share_memory(vector, model.vector) for vector in vectors)


def parts(value: Any) -> Iterator[Any]:
    yield value
    if isinstance(value, tuple | list):
        for item in value:
            yield getattr(item, "model", item)
    else:
        for name in ("model", "models", "mine", "others"):
            found = getattr(value, name, None)
            yield from found if isinstance(found, tuple | list) else (found,)


def followed() -> Follower:
    settings = Settings.model_validate({"policy": {"name": "el"}, "rounds": 1, "task": {"nodes": 6}})
    simulate(settings, nodes=6)  # imports
    follower = Follower()
    sys.setprofile(follower)
    try:
        simulate(settings, nodes=6)
    finally:
        sys.setprofile(None)
    if not follower.done:
        raise SystemExit("model_path: no trained model was seen to be averaged; which function returns it?")
    return follower


def main() -> None:
    follower = followed()
    path = [name for name in follower.path if name]
    rows = {"Train on A to Average on B": path, "one Send": list(follower.send)}
    table = [{"what": what, "files": len(files), "which": " ".join(files)} for what, files in rows.items()]
    show("Files that handle one model", table)


if __name__ == "__main__":
    main()
