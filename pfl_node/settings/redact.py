"""Settings as they may be shown to others: what looks like a secret is `***`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pfl_node.jsonable import plain
from pfl_node.settings import Settings

SECRET = re.compile(
    r"(^|_)(token|secret|password|passwd|passphrase|credentials?|api_?key|private_?key)(_|$)", re.I
)
IN_A_URL = re.compile(r"(?<=://)[^/\s@]+(?=@)")  # postgres://user:password@host
HIDDEN = "***"


def without_secrets(settings: Settings) -> dict[str, Any]:
    """The whole tree as JSON has it, a task's own options included."""
    return dict(_hide(plain(settings.model_dump(mode="json"))))


def is_secret(key: str) -> bool:
    """By its name, with or without its section."""
    return SECRET.search(key.rpartition(".")[2]) is not None


def shown(key: str, value: Any) -> Any:
    """The value of a key as anybody may see it."""
    if value is not None and is_secret(key):
        return HIDDEN
    match value:
        case str():
            return IN_A_URL.sub(HIDDEN, value)
        case Mapping():
            return _hide(value)
        case list() | tuple():
            return type(value)(shown("", one) for one in value)
    return value


def _hide(tree: Mapping[str, Any]) -> dict[str, Any]:
    return {key: shown(key, value) for key, value in tree.items()}
