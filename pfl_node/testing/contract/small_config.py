"""Small knobs for any policy, so that a few nodes do in a few rounds what the papers do in hundreds."""

from __future__ import annotations

from collections.abc import Iterator
from math import floor, log
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from pfl_node.policies.base import Policy

LARGE = 2  # larger integers are reduced
SPEEDUP = 10.0  # of times in seconds


def small(policy: type[Policy], *, real_time: bool = False) -> dict[str, Any]:
    """Replaces large integers by about their logarithm, which keeps their order. `real_time` shortens knobs whose
    description mentions seconds."""
    found: dict[str, Any] = {}
    for name, field in policy.Config.model_fields.items():
        default = field.default
        if type(default) is int and default > LARGE:
            found[name] = max(LARGE, 1 + floor(log(default)), bound(field, "ge", -1))
        elif real_time and type(default) is float and "second" in (field.description or ""):
            found[name] = default / SPEEDUP
    return found


def alternatives(policy: type[Policy]) -> Iterator[dict[str, Any]]:
    """Each knob with its other values: the other literals, a number instead of None, zero where it is allowed."""
    for name, field in policy.Config.model_fields.items():
        for value in _others(field):
            yield {name: value}


def _others(field: FieldInfo) -> list[Any]:
    kind, default = field.annotation, field.default
    if kind is bool:
        return [not default]
    if get_origin(kind) is Literal:
        return [word for word in get_args(kind) if word != default]
    if default is None:
        return [choice(LARGE) for choice in get_args(kind) if choice in (int, float)]
    if kind in (int, float) and default and bound(field, "ge", -1) == 0:
        return [type(default)(0)]
    return []


def bound(field: FieldInfo, name: str, other: float) -> float:
    """The bound of this name (ge, gt, le, lt) in the field's metadata; `other`: none."""
    return next((getattr(rule, name) for rule in field.metadata if hasattr(rule, name)), other)
