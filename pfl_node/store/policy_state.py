"""Convert a policy's state and the node's local state to JSON and vectors, and back. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from pfl_node.errors import StoreError
from pfl_node.model import Array, Layout, LocalState, Model


def freeze(value: Any) -> tuple[Any, dict[str, Array]]:
    """JSON, and the vectors it refers to. Equal models are stored once."""
    vectors: dict[str, Array] = {}
    names: dict[int, str] = {}

    def name_of(array: Array) -> str:
        if id(array) not in names:
            names[id(array)] = f"v{len(names)}"
            vectors[names[id(array)]] = array
        return names[id(array)]

    def walk(item: Any) -> Any:
        match item:
            case None | bool() | int() | float() | str():
                return item
            case Model():
                return {"$": "model", "part": item.layout.part, "vector": name_of(item.vector)}
            case np.ndarray():
                return {"$": "array", "vector": name_of(item)}
            case LocalState():
                parts = (item.private, item.layout, dict(item.tensors), dict(item.facts))
                return {"$": "local", "items": [walk(part) for part in parts]}
            case Counter():
                return {"$": "counter", "items": [[walk(k), walk(v)] for k, v in item.items()]}
            case dict():
                return {"$": "dict", "items": [[walk(k), walk(v)] for k, v in item.items()]}
            case tuple():
                return {"$": "tuple", "items": [walk(v) for v in item]}
            case set() | frozenset():
                return {"$": type(item).__name__, "items": [walk(v) for v in sorted(item)]}
            case list():
                return [walk(v) for v in item]
        raise StoreError(f"a policy keeps a {type(item).__name__}, which cannot be stored in a checkpoint")

    return walk(value), vectors


def thaw(frozen: Any, vectors: Mapping[str, Array], layout: Layout) -> Any:
    """The inverse of freeze, for models of this layout."""
    if isinstance(frozen, list):
        return [thaw(v, vectors, layout) for v in frozen]
    if not isinstance(frozen, dict):
        return frozen
    kind = frozen["$"]
    if kind == "model":
        return Model(layout.of(frozen["part"]), vectors[frozen["vector"]])
    if kind == "array":
        return vectors[frozen["vector"]]
    items = [thaw(v, vectors, layout) for v in frozen["items"]]
    return _MAKE[kind](items)


_MAKE: dict[str, Callable[[list[Any]], Any]] = {
    "dict": dict,
    "counter": lambda rows: Counter(dict(rows)),
    "tuple": tuple,
    "local": lambda parts: LocalState(*parts),
    "set": set,
    "frozenset": frozenset,
}
