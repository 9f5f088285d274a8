"""Tensors and plain values in a node's LocalState, by prefix: the state of an optimizer or of a custom loop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pfl_node.errors import TaskError
from pfl_node.model import LocalState

INNER = "inner:"  # prefix of the names of tensors within lists and dicts
TENSOR, ITEMS = "$tensor", "$items"


def read(state: LocalState, prefix: str) -> dict[str, Any]:
    """A copy of the values under the prefix: tensors in main memory, and plain values."""
    tensors = {name: torch.from_numpy(np.array(array)) for name, array in _below(prefix, state.tensors).items()}
    inner = {name: tensors.pop(name) for name in list(tensors) if name.startswith(INNER)}
    return tensors | {name: _decoded(fact, inner) for name, fact in _below(prefix, state.facts).items()}


def write(state: LocalState, prefix: str, values: Mapping[str, Any]) -> LocalState:
    """The state with these values in place of those under the prefix."""
    tensors = {name: array for name, array in state.tensors.items() if not name.startswith(prefix)}
    facts = {name: fact for name, fact in state.facts.items() if not name.startswith(prefix)}
    inner: dict[str, np.ndarray[Any, Any]] = {}
    for name, value in values.items():
        if isinstance(value, Tensor | np.ndarray):
            tensors[prefix + name] = _array(value)
        else:
            facts[prefix + name] = _encoded(f"work.state[{name!r}]", value, inner)
    tensors |= {prefix + name: array for name, array in inner.items()}
    return replace(state, tensors=tensors, facts=facts)


def _below(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}


def _array(value: Tensor | np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if isinstance(value, np.ndarray):
        return value.copy()
    value = value.detach().cpu()
    return (value.float() if value.dtype == torch.bfloat16 else value).numpy().copy()


def _encoded(where: str, value: Any, inner: dict[str, np.ndarray[Any, Any]]) -> Any:
    """The value as JSON. A tensor within it is added to `inner`; it and a dict with keys other than texts, as in
    the state of an optimizer, are replaced by a dict with one reserved key."""
    if isinstance(value, Tensor | np.ndarray):
        name = f"{INNER}{len(inner)}"
        inner[name] = _array(value)
        return {TENSOR: name}
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_encoded(f"{where}[{i}]", item, inner) for i, item in enumerate(value)]
    if isinstance(value, Mapping):
        items = [(key, _encoded(f"{where}[{key!r}]", item, inner)) for key, item in value.items()]
        if all(isinstance(key, str) and key not in (TENSOR, ITEMS) for key, _ in items):
            return dict(items)
        if all(key is None or isinstance(key, bool | int | float | str) for key, _ in items):
            return {ITEMS: [list(item) for item in items]}
        raise TaskError(f"{where} has keys that are neither texts nor numbers: {_kinds(key for key, _ in items)}")
    raise TaskError(f"{where} is of type {type(value).__name__}: keep tensors, numbers, texts, lists or dicts")


def _kinds(values: Iterable[Any]) -> str:
    return ", ".join(sorted({type(value).__name__ for value in values}))


def _decoded(fact: Any, inner: Mapping[str, Tensor]) -> Any:
    if isinstance(fact, list):
        return [_decoded(item, inner) for item in fact]
    if not isinstance(fact, Mapping):
        return fact
    if set(fact) == {TENSOR}:
        return inner[fact[TENSOR]]
    if set(fact) == {ITEMS}:
        return {key: _decoded(item, inner) for key, item in fact[ITEMS]}
    return {key: _decoded(item, inner) for key, item in fact.items()}
