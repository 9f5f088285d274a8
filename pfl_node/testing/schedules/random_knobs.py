"""Draws random knobs for any policy, within the limits of its Config."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from pfl_node.errors import ConfigError
from pfl_node.policies import configure
from pfl_node.policies.base import Policy
from pfl_node.testing.contract.small_config import small

TRIES = 20  # invalid combinations before the small defaults are used
LARGEST = 6  # integer: swarms are small and rounds are few
CHANGED = 0.5  # probability of changing a knob


def draw_knobs(policy: type[Policy], chance: Random, given: Mapping[str, Any]) -> dict[str, Any]:
    """The small defaults, some of them changed; `given` knobs stay."""
    plain = small(policy, real_time=True)
    for _ in range(TRIES):
        changed = {
            name: _value(field, chance)
            for name, field in policy.Config.model_fields.items()
            if name not in given and chance.random() < CHANGED
        }
        found = {**plain, **{k: v for k, v in changed.items() if v is not ...}, **given}
        try:
            configure(policy, found)
        except ConfigError:
            continue
        return found
    return {**plain, **given}


def _value(field: FieldInfo, chance: Random) -> Any:
    """A value that the field allows; an ellipsis for an unknown type."""
    kind, default = field.annotation, field.default
    if kind is bool:
        return chance.random() < 0.5
    if get_origin(kind) is Literal:
        return chance.choice(get_args(kind))
    if type(None) in get_args(kind):
        if chance.random() < 0.5:
            return None
        kind = next((k for k in get_args(kind) if k in (int, float)), None)
    if kind is int:
        low = int(_bound(field, "ge", _bound(field, "gt", -1) + 1))
        return chance.randint(low, int(min(max(LARGEST, low), _bound(field, "le", _bound(field, "lt", 1e9) - 1))))
    if kind is float and type(default) in (int, float, type(None)):
        return _fraction(field, float(default or 1.0), chance)
    return ...


def _fraction(field: FieldInfo, default: float, chance: Random) -> float:
    """Around the default; long times are shortened."""
    seconds = "second" in (field.description or "")
    value = default * (chance.uniform(0.02, 0.3) if seconds and default > 5 else chance.uniform(0.2, 2.0))
    low = max(_bound(field, "ge", 0.0), _bound(field, "gt", 0.0))
    high = min(_bound(field, "le", 1e9), _bound(field, "lt", 1e9))
    return round(min(max(value, low), high), 3)


def _bound(field: FieldInfo, name: str, other: float) -> float:
    return float(next((getattr(rule, name) for rule in field.metadata if hasattr(rule, name)), other))
