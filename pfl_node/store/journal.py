"""The node's diary: one JSON object a line, appended as things happen."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pfl_node.errors import StoreError
from pfl_node.plain import plain


class Journal:
    """An open journal. A line is written at once and whole, so a crash loses none that was written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = path.open("ab", buffering=0)
            self._torn = path.stat().st_size > 0 and not _ends_in_newline(path)
        except OSError as error:
            raise self._error(error) from error

    def write(self, event: str, data: Mapping[str, Any], *, time: float) -> None:
        """Raises StoreError when the disk does not take it: this line is missing then, a later one may not."""
        own = {"time": round(time, 6), "event": event}
        row = plain({**own, **data, **own})
        line = json.dumps(row, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        if self._torn:
            line = b"\n" + line
        try:
            written = self._file.write(line) or 0
        except OSError as error:
            raise self._error(error) from error
        self._torn = written < len(line) and (self._torn or written > 0)
        if written < len(line):
            raise StoreError(f"cannot write {self._path}: the disk is full")

    def close(self) -> None:
        self._file.close()

    def _error(self, error: OSError) -> StoreError:
        return StoreError(f"cannot write {self._path}: {error.strerror or error}")


def _ends_in_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) == b"\n"
