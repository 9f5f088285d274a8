"""The node's journal: one JSON object per line, appended as events happen."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pfl_node.errors import StoreError
from pfl_node.failpoints import failpoint
from pfl_node.jsonable import json_object, plain
from pfl_node.store.atomic import writing

BLOCK = 1 << 16


class Journal:
    """An open journal. Lines are written immediately, so a crash loses none; an incomplete last line, left by a
    power failure or a full disk, is removed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._torn = False  # whether it ends in an incomplete line
        with writing(path):
            self._file = path.open("ab", buffering=0)
            self._torn = _whole_size(path) < path.stat().st_size
        self._mend()

    def write(self, event: str, data: Mapping[str, Any], *, time: float) -> None:
        """Raises StoreError if the disk does not accept the line; later lines may succeed."""
        own = {"time": round(time, 6), "event": event}
        row = plain({**own, **data, **own})
        line = json.dumps(row, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        if self._torn:
            line = b"\n" + line
        with writing(self._path):
            cut = len(line) // 2 if failpoint("journal.write") else len(line)
            written = self._file.write(line[:cut]) or 0
        if written < len(line):
            self._torn = self._torn or written > 0
            self._mend()
            raise StoreError(f"cannot write {self._path}: the disk is full")
        self._torn = False

    def sync(self) -> None:
        """Flush to disk, so that the lines survive a power failure."""
        with writing(self._path):
            failpoint("journal.fsync")
            if self._path.is_file():  # a pipe or a device has no fsync
                os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def _mend(self) -> None:
        """Remove an incomplete line. If that fails, or only its newline is missing, the next line starts with a
        newline."""
        if not self._torn:
            return
        try:
            size = _whole_size(self._path)
            if _is_json(self._path, size):
                return
            failpoint("journal.mend")
            self._file.truncate(size)
            self._torn = False
        except OSError:
            return


def last_round(path: Path) -> int | None:
    """The last round near the end of the journal; None: there is none."""
    if not path.is_file():  # a pipe cannot be read from its end
        return None
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, 2) - BLOCK))
        lines = file.read(BLOCK).splitlines()
    for line in reversed(lines):
        row = json_object(line)  # empty for an incomplete line
        if row.get("event") == "round" and isinstance(row.get("round"), int):
            return int(row["round"])
    return None


def _is_json(path: Path, begin: int) -> bool:
    with path.open("rb") as file:
        file.seek(begin)
        return bool(json_object(file.read()))


def _whole_size(path: Path) -> int:
    """Where the last complete line ends."""
    with path.open("rb") as file:
        place = file.seek(0, 2)
        while place > 0:
            begin = max(0, place - BLOCK)
            file.seek(begin)
            newline = file.read(place - begin).rfind(b"\n")
            if newline >= 0:
                return begin + newline + 1
            place = begin
    return 0
