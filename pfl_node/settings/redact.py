"""Hide secrets when settings are displayed: their values become `***`."""

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
    """The whole tree as JSON values, including the options of policy and task."""
    return dict(_hide(plain(settings.model_dump(mode="json"))))


def is_secret(key: str) -> bool:
    return SECRET.search(key.rpartition(".")[2]) is not None


def shown(key: str, value: Any) -> Any:
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
