"""Convert the values that a policy records to JSON types, and read JSON of unknown origin. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import isfinite
from numbers import Integral, Real
from types import NoneType
from typing import Any

JSON_TYPES = frozenset((NoneType, bool, int, str))  # the most frequent types


def plain(value: Any, number: Callable[[float], float] = float, unknown: Callable[[Any], Any] = str) -> Any:
    """Numbers that are not finite become null; sets are sorted, so that equal sets give equal text."""
    if type(value) in JSON_TYPES:
        return value
    inner = partial(plain, number=number, unknown=unknown)
    if type(value) is dict:
        return {str(k): v if type(v) in JSON_TYPES else inner(v) for k, v in value.items()}
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


def json_object(text: str | bytes) -> dict[str, Any]:
    """The JSON object in a text; empty: the text contains something else, or is damaged."""
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
