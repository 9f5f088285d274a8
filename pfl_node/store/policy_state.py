"""Convert a policy's state to JSON and vectors, and back. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from pfl_node.errors import StoreError
from pfl_node.model import Layout, Model, Vector


def freeze(value: Any) -> tuple[Any, dict[str, Vector]]:
    """JSON, and the vectors it refers to. Equal models are stored once."""
    vectors: dict[str, Vector] = {}
    names: dict[int, str] = {}

    def walk(item: Any) -> Any:
        match item:
            case None | bool() | int() | float() | str():
                return item
            case Model():
                key = id(item.vector)
                if key not in names:
                    names[key] = f"v{len(names)}"
                    vectors[names[key]] = item.vector
                return {"$": "model", "part": item.layout.part, "vector": names[key]}
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


def thaw(frozen: Any, vectors: Mapping[str, Vector], layout: Layout) -> Any:
    """The inverse of freeze, for models of this layout."""
    if isinstance(frozen, list):
        return [thaw(v, vectors, layout) for v in frozen]
    if not isinstance(frozen, dict):
        return frozen
    kind = frozen["$"]
    if kind == "model":
        return Model(layout.of(frozen["part"]), vectors[frozen["vector"]])
    items = [thaw(v, vectors, layout) for v in frozen["items"]]
    return _MAKE[kind](items)


_MAKE: dict[str, Callable[[list[Any]], Any]] = {
    "dict": dict,
    "counter": lambda rows: Counter(dict(rows)),
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
}
