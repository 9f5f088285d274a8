"""The node's diary: one JSON object a line, appended as things happen."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pfl_node.errors import StoreError
from pfl_node.failpoints import failpoint
from pfl_node.jsonable import plain
from pfl_node.store.atomic import writing

BLOCK = 1 << 16


class Journal:
    """An open journal. A line is written at once, so a crash loses none that was written; half a line that the end
    of the power or of the disk left is cut off, so that every line is whole."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._torn = False  # does it end in half a line?
        with writing(path):
            self._file = path.open("ab", buffering=0)
            self._torn = _whole_size(path) < path.stat().st_size
        self._mend()

    def write(self, event: str, data: Mapping[str, Any], *, time: float) -> None:
        """Raises StoreError when the disk does not take it: this line is missing then, a later one may not."""
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
        """What was written is on the disk, also when the power goes."""
        with writing(self._path):
            failpoint("journal.fsync")
            if self._path.is_file():  # a pipe or a device has no fsync
                os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def _mend(self) -> None:
        """Cut half a line off. Where that fails, or only its end is missing, the next line begins with one."""
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
    """The last round that its end tells of; None: none, or there is no journal."""
    if not path.is_file():  # a pipe has no end to look at
        return None
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, 2) - BLOCK))
        lines = file.read(BLOCK).splitlines()
    for line in reversed(lines):
        try:
            row = json.loads(line)
            if row["event"] == "round":
                return int(row["round"])
        except (ValueError, TypeError, KeyError):
            continue  # half a line
    return None


def _is_json(path: Path, begin: int) -> bool:
    with path.open("rb") as file:
        file.seek(begin)
        try:
            return isinstance(json.loads(file.read()), dict)
        except ValueError:
            return False


def _whole_size(path: Path) -> int:
    """Where the last whole line ends."""
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
