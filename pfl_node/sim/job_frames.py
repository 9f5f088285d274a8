"""Frames for jobs and results on a pipe: a line of JSON, then the raw bytes of the arrays. No pickle."""

from __future__ import annotations

import json
from math import prod
from typing import IO, Any

import numpy as np

from pfl_node.model import Layout, LocalState, Model
from pfl_node.node.ports import Job, LearnerFacts, Trained
from pfl_node.types import Eval

Array = np.ndarray[Any, Any]


def write(pipe: IO[bytes], facts: dict[str, Any], arrays: list[Array] | None = None) -> None:
    arrays = arrays or []
    sizes = [[a.dtype.str, list(a.shape)] for a in arrays]
    pipe.write(json.dumps({**facts, "arrays": sizes}).encode() + b"\n")
    for array in arrays:
        pipe.write(np.ascontiguousarray(array).data)
    pipe.flush()


def read(pipe: IO[bytes]) -> tuple[dict[str, Any], list[Array]] | None:
    """Read one frame; None: the other end closed the pipe."""
    line = pipe.readline()
    if not line.endswith(b"\n"):
        return None
    facts = json.loads(line)
    arrays = []
    for kind, shape in facts.pop("arrays"):
        size = prod(shape) * np.dtype(kind).itemsize
        if len(data := pipe.read(size)) != size:
            return None
        arrays.append(np.frombuffer(data, np.dtype(kind)).reshape(shape))
    return facts, arrays


def pack(value: Any, arrays: list[Array]) -> Any:
    """Convert to JSON types; the arrays of models are appended to `arrays`."""
    match value:
        case Model():
            arrays.append(value.vector)
            return {"model": value.layout.part, "at": len(arrays) - 1}
        case np.ndarray():
            arrays.append(value)
            return {"array": len(arrays) - 1}
        case Eval():
            return {"eval": [value.loss, value.accuracy, value.samples]}
        case Job():
            told = {"models": pack(value.models, arrays), "told": pack(value.options, arrays)}
            return {"job": value.kind, **told, "state": pack(value.state, arrays)}
        case LocalState():
            parts = (value.private, value.layout, dict(value.tensors), dict(value.facts))
            return {"state": [pack(part, arrays) for part in parts]}
        case Trained():
            return {"trained": pack(value.model, arrays), "state": pack(value.state, arrays)}
        case tuple() | list():
            return {type(value).__name__: [pack(item, arrays) for item in value]}
        case dict():
            return {"dict": {key: pack(item, arrays) for key, item in value.items()}}
    return value


def unpack(value: Any, arrays: list[Array], learner: LearnerFacts) -> Any:
    """The inverse of `pack`; the learner provides the layouts of its models."""
    match value:
        case {"model": part, "at": place}:
            layout: Layout | None = learner.predictions if part == "predictions" else learner.layout.of(part)
            assert layout is not None
            return Model(layout, arrays[place])
        case {"array": place}:
            return arrays[place]
        case {"eval": [loss, accuracy, samples]}:
            return Eval(loss, accuracy, samples)
        case {"job": kind, "models": models, "told": told, "state": state}:
            given = (unpack(part, arrays, learner) for part in (models, told, state))
            return Job(kind, *given)
        case {"trained": model, "state": state}:
            return Trained(unpack(model, arrays, learner), unpack(state, arrays, learner))
        case {"state": parts}:
            return LocalState(*(unpack(part, arrays, learner) for part in parts))
        case {"tuple": items}:
            return tuple(unpack(item, arrays, learner) for item in items)
        case {"list": items}:
            return [unpack(item, arrays, learner) for item in items]
        case {"dict": items}:
            return {key: unpack(item, arrays, learner) for key, item in items.items()}
    return value
