"""Write values as TOML, which the standard library only reads."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def toml_key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else toml(name)


def toml(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str() | Path():
            return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
        case Mapping():
            return "{" + ", ".join(f"{toml_key(k)} = {toml(v)}" for k, v in value.items()) + "}"
        case Sequence():
            return "[" + ", ".join(map(toml, value)) + "]"
    return toml(str(value))
