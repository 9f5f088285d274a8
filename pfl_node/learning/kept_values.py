"""Tensors and plain values in a node's LocalState, by prefix: the state of an optimizer or of a custom loop."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pfl_node.errors import TaskError
from pfl_node.model import LocalState


def read(state: LocalState, prefix: str) -> dict[str, Any]:
    """A copy: tensors in the main memory, and plain values."""
    tensors = {name: torch.from_numpy(np.array(array)) for name, array in _below(prefix, state.tensors).items()}
    return tensors | _below(prefix, state.facts)


def write(state: LocalState, prefix: str, values: Mapping[str, Any]) -> LocalState:
    """The state with these values in place of those under the prefix."""
    tensors = {name: array for name, array in state.tensors.items() if not name.startswith(prefix)}
    facts = {name: fact for name, fact in state.facts.items() if not name.startswith(prefix)}
    for name, value in values.items():
        if isinstance(value, Tensor):
            tensors[prefix + name] = _array(value)
        elif isinstance(value, np.ndarray):
            tensors[prefix + name] = value.copy()
        else:
            facts[prefix + name] = _plain(name, value)
    return replace(state, tensors=tensors, facts=facts)


def _below(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}


def _array(value: Tensor) -> np.ndarray[Any, Any]:
    value = value.detach().cpu()
    return (value.float() if value.dtype == torch.bfloat16 else value).numpy().copy()


def _plain(name: str, value: Any) -> Any:
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError):
        kind = type(value).__name__
        raise TaskError(
            f"work.state[{name!r}] is of type {kind}: keep tensors, numbers, texts, lists or dicts"
        ) from None
