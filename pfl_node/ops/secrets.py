"""Settings as they may be shown to others: what looks like a secret is left out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pfl_node.plain import plain
from pfl_node.settings import Settings

SECRET = re.compile(
    r"(^|_)(token|secret|password|passwd|passphrase|credentials?|api_?key|private_?key)(_|$)", re.I
)
HIDDEN = "(hidden)"


def without_secrets(settings: Settings) -> dict[str, Any]:
    """The whole tree as JSON has it, a task's own options included."""
    return dict(_hide(plain(settings.model_dump(mode="json"))))


def _hide(tree: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _shown(key, value) for key, value in tree.items()}


def _shown(key: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return _hide(value)
    return HIDDEN if value is not None and SECRET.search(key) else value
