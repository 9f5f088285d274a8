"""The tree of settings as dotted keys, with descriptions of the allowed values."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from inspect import isclass
from typing import Any

from pydantic import BaseModel

from pfl_node.settings import Settings

NAMED = frozenset({"policy", "task"})  # `policy = "pens"` is short for `policy.name = "pens"`; accept knobs
TEXT, LIST, FLAG = "a text", "a list of ", "true or false"
KINDS = {"integer": "a whole number", "number": "a number", "boolean": FLAG}
LIMITS = {"exclusiveMinimum": "above", "minimum": "at least", "exclusiveMaximum": "below", "maximum": "at most"}


@cache
def sections() -> dict[str, type[BaseModel]]:
    kinds = {name: field.annotation for name, field in Settings.model_fields.items()}
    return {name: kind for name, kind in kinds.items() if isclass(kind) and issubclass(kind, BaseModel)}


@cache
def keys() -> dict[str, tuple[type[BaseModel], str]]:
    """Every key with its class and field."""
    plain = {name: (Settings, name) for name in Settings.model_fields if name not in sections()}
    nested = {f"{section}.{name}": (cls, name) for section, cls in sections().items() for name in cls.model_fields}
    return plain | nested


def dotted(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The values by dotted key. A value in a section may be a table of the task or policy."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if key in sections() and isinstance(value, Mapping):
            flat |= {f"{key}.{leaf}": v for leaf, v in value.items()}
        else:
            flat[f"{key}.name" if key in NAMED else key] = value
    return flat


def is_known(key: str) -> bool:
    """Whether it is a key, or a knob of the policy or the task."""
    section, _, knob = key.partition(".")
    return key in keys() or (section in NAMED and knob != "" and "." not in knob)


@cache
def allowed(key: str) -> str:
    """The allowed values of a key, in words."""
    cls, name = keys()[key]
    return in_words(_schemas()[cls.__name__]["properties"][name])


@cache
def _schemas() -> dict[str, Any]:
    """The JSON schema of each class. To describe one plain key, Pydantic already generates the whole tree."""
    tree = Settings.model_json_schema()
    return {Settings.__name__: tree, **tree["$defs"]}


def in_words(schema: Mapping[str, Any]) -> str:
    kinds = [s for s in schema.get("anyOf", ()) if s.get("type") != "null"]
    if len(kinds) > 1:
        return " or ".join(map(in_words, kinds))
    kind = kinds[0] if kinds else schema
    if "const" in kind:
        return str(kind["const"])
    if "words" in kind:
        return str(kind["words"])
    if "enum" in kind:
        return "one of " + ", ".join(map(str, kind["enum"]))
    if kind.get("type") == "array":
        return LIST + _many(in_words(kind.get("items", {})))
    bounds = [f"{word} {kind[limit]}" for limit, word in LIMITS.items() if limit in kind]
    return " ".join([KINDS.get(kind.get("type", ""), TEXT), " and ".join(bounds)]).rstrip()


def _many(words: str) -> str:
    """`a whole number at least 0` becomes `whole numbers at least 0`."""
    for noun in ("whole number", "number", "text"):
        if words.startswith(f"a {noun}"):
            return f"{noun}s{words.removeprefix(f'a {noun}')}"
    return words.replace("one of", "any of", 1)
