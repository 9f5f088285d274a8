"""Hide secrets when settings are displayed: their values become `***`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pfl_node.jsonable import plain
from pfl_node.settings import Settings

SECRET = re.compile(
    r"(^|_)(token|secret|pass(word|wd|phrase)?|pwd|credentials?|creds?|auth|dsn|cookie|sas|"
    r"(api|access|account|private|secret|shared|signing|storage)_?key)(_|$)",
    re.I,
)
IN_A_URL = re.compile(r"(?<=://)[^/\s@]+(?=@)")  # postgres://user:password@host
HIDDEN = "***"


def without_secrets(settings: Settings) -> dict[str, Any]:
    """The whole tree as JSON values, including the options of policy and task."""
    return dict(_hide(plain(settings.model_dump(mode="json"))))


def for_others(settings: Settings) -> dict[str, Any]:
    """The same, but also without the values of the task's and the policy's own options: any of them may be a
    secret."""
    tree = without_secrets(settings)
    for name, options in (("task", settings.task.options), ("policy", settings.policy.options)):
        tree[name] |= dict.fromkeys(options, HIDDEN)
    return tree


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
