"""Anything a policy tells as JSON's own types. Pure; what becomes of a number or of a stranger is handed in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import isfinite
from numbers import Integral, Real
from types import NoneType
from typing import Any

ALREADY = frozenset((NoneType, bool, int, str))  # most of what is told: known at a glance


def plain(value: Any, number: Callable[[float], float] = float, unknown: Callable[[Any], Any] = str) -> Any:
    """Null for a number that is none; sets in order, so that equal ones give equal text."""
    if type(value) in ALREADY:
        return value
    inner = partial(plain, number=number, unknown=unknown)
    if type(value) is dict:
        return {str(k): v if type(v) in ALREADY else inner(v) for k, v in value.items()}
    match value:
        case None | bool() | str():
            return value
        case Integral():
            return int(value)
        case Real():
            return number(float(value)) if isfinite(value) else None
        case Mapping():
            return {str(k): inner(v) for k, v in value.items()}
        case set() | frozenset():
            return [inner(v) for v in sorted(value, key=lambda v: (type(v).__name__, v))]
        case Sequence():
            return [inner(v) for v in value]
    return unknown(value)
