"""Frames for jobs and results on a pipe: a line of JSON, then the raw bytes of the arrays. No pickle."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from typing import IO, Any

import numpy as np

from pfl_node.model import Array
from pfl_node.node.ports import LearnerFacts
from pfl_node.store.policy_state import freeze, thaw


@dataclass(frozen=True, slots=True)
class Frame:
    facts: dict[str, Any]
    frozen: Any
    arrays: dict[str, Array]

    def value(self, learner: LearnerFacts) -> Any:
        """The learner provides the layouts of its models."""
        return thaw(self.frozen, self.arrays, learner.layout, learner.predictions)


def write(pipe: IO[bytes], facts: dict[str, Any], value: Any = None) -> None:
    frozen, arrays = freeze(value)
    shapes = {name: [a.dtype.str, list(a.shape)] for name, a in arrays.items()}
    pipe.write(json.dumps([facts, frozen, shapes]).encode() + b"\n")
    for array in arrays.values():
        pipe.write(np.ascontiguousarray(array).data)
    pipe.flush()


def read(pipe: IO[bytes]) -> Frame | None:
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
