"""The node's diary: one JSON object a line, appended as things happen."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from pfl_node.errors import StoreError


class Journal:
    """An open journal. A line is written at once, so a crash loses none that was written."""

    def __init__(self, path: Path) -> None:
        try:
            self._file: IO[str] = path.open("a", encoding="utf-8", buffering=1)
        except OSError as error:
            raise StoreError(f"cannot write {path}: {error.strerror or error}") from error

    def write(self, event: str, data: Mapping[str, Any], *, time: float) -> None:
        row = {"time": round(time, 6), "event": event, **data}
        self._file.write(json.dumps(row, separators=(",", ":"), default=str) + "\n")

    def close(self) -> None:
        self._file.close()
