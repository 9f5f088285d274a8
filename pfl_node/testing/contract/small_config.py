"""The knobs of a policy made small, so that a few nodes do in a few rounds what the papers do in hundreds. Reads
the policy's Config; knows no policy by name."""

from __future__ import annotations

from collections.abc import Iterator
from math import floor, log
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from pfl_node.policies.base import Policy

LARGE = 2  # a whole number above this is made smaller
HASTE = 10.0  # by this seconds are made shorter, where time is real


def small(policy: type[Policy], *, real_time: bool = False) -> dict[str, Any]:
    """Large whole numbers become about their logarithm, which keeps their order. In real time what is described as
    seconds is shorter, too."""
    found: dict[str, Any] = {}
    for name, field in policy.Config.model_fields.items():
        default = field.default
        if type(default) is int and default > LARGE:
            found[name] = max(LARGE, 1 + floor(log(default)), _least(field))
        elif real_time and type(default) is float and "second" in (field.description or ""):
            found[name] = default / HASTE
    return found


def alternatives(policy: type[Policy]) -> Iterator[dict[str, Any]]:
    """Everything else that one knob can be told: the other words and truths, a number where there is none, zero
    where that is allowed."""
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
    if kind in (int, float) and default and _least(field) == 0:
        return [type(default)(0)]
    return []


def _least(field: FieldInfo) -> float:
    """The lowest value that is allowed, as far as the field itself says so; below 0: there is none."""
    return next((rule.ge for rule in field.metadata if hasattr(rule, "ge")), -1)
