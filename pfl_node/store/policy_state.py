"""Convert a policy's state and the node's local state to JSON and vectors, and back. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any

import numpy as np

from pfl_node.errors import StoreError
from pfl_node.model import Array, Layout, LocalState, Model, PartialModel
from pfl_node.types import Eval, Offer

VALUES: dict[str, type[LocalState | Offer | Eval]] = {"local": LocalState, "offer": Offer, "eval": Eval}


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
            case PartialModel():
                arrays = {"indices": name_of(item.indices), "values": name_of(item.values)}
                return {"$": "partial", "part": item.layout.part, "same": item.same, **arrays}
            case Model():
                return {"$": "model", "part": item.layout.part, "vector": name_of(item.vector)}
            case np.ndarray():
                return {"$": "array", "vector": name_of(item)}
            case LocalState() | Offer() | Eval():
                kind = next(kind for kind, cls in VALUES.items() if isinstance(item, cls))
                return {"$": kind, "items": [walk(getattr(item, field.name)) for field in fields(item)]}
            case Counter():
                return {"$": "counter", "items": [[walk(k), walk(v)] for k, v in item.items()]}
            case dict() | MappingProxyType():
                return {"$": "dict", "items": [[walk(k), walk(v)] for k, v in item.items()]}
            case tuple():
                return {"$": "tuple", "items": [walk(v) for v in item]}
            case set() | frozenset():
                return {"$": type(item).__name__, "items": [walk(v) for v in sorted(item)]}
            case list():
                return [walk(v) for v in item]
        raise StoreError(f"a policy keeps a {type(item).__name__}, which cannot be stored in a checkpoint")

    return walk(value), vectors


def thaw(frozen: Any, vectors: Mapping[str, Array], layout: Layout, predictions: Layout | None = None) -> Any:
    """The inverse of freeze, for models and predictions of these layouts."""
    if isinstance(frozen, list):
        return [thaw(v, vectors, layout, predictions) for v in frozen]
    if not isinstance(frozen, dict):
        return frozen
    kind = frozen["$"]
    if kind == "model":
        part = frozen["part"]
        own = predictions if part == "predictions" and predictions else layout.of(part)
        return Model(own, vectors[frozen["vector"]])
    if kind == "partial":
        indices, values = vectors[frozen["indices"]], vectors[frozen["values"]]
        return PartialModel(layout.of(frozen["part"]), indices, values, same=frozen["same"])
    if kind == "array":
        return vectors[frozen["vector"]]
    items = [thaw(v, vectors, layout, predictions) for v in frozen["items"]]
    return VALUES[kind](*items) if kind in VALUES else _MAKE[kind](items)


_MAKE: dict[str, Callable[[list[Any]], Any]] = {
    "dict": dict,
    "counter": lambda rows: Counter(dict(rows)),
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
}
