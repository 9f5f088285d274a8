"""The journal of a simulation: one JSON object per line, byte-identical for the same seed."""

from __future__ import annotations

import json
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal, Self

from pfl_node.errors import StoreError
from pfl_node.jsonable import plain
from pfl_node.types import PeerId

Level = Literal["rounds", "messages"]

JSON = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)


class EventJournal:
    """A context manager that writes PATH.part, and renames it to PATH unless the run fails. Without a path it
    writes nothing. Processes that may write the same journal have different `writer`s."""

    def __init__(self, path: Path | None, level: Level = "messages", writer: str = "") -> None:
        self.messages = level == "messages" and path is not None
        self._path = path
        self._part = path.with_name(f"{path.name}{writer and '.'}{writer}.part") if path else None
        self._file: IO[str] | None = None

    def write(self, time: float, node: PeerId | None, event: str, **data: Any) -> None:
        """An event without a node concerns the whole swarm."""
        if self._part:
            own = {"time": round(time, 6), "node": node, "event": event}
            row = own | exact(data) | own
            (self._file or self._open(self._part)).write(JSON.encode(row) + "\n")

    def message(self, time: float, node: PeerId, event: str, **data: Any) -> None:
        """Write an event of a single message, unless the level is "rounds"."""
        if self.messages:
            self.write(time, node, event, **data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if self._file:
            self._file.close()
        if kind is None and self._part and self._path:
            self._part.replace(self._path)

    def _open(self, path: Path) -> IO[str]:
        """Called with the first event, so that a run that fails to start creates no file."""
        try:
            self._file = path.open("w", encoding="utf-8", newline="\n")
        except OSError as error:
            raise StoreError(f"cannot write {path}: {error.strerror or error}") from error
        return self._file


def exact(value: Any) -> Any:
    """JSON values with floats of nine digits. Other types are an error: their text may differ between runs."""
    return plain(value, number=lambda f: float(f"{f:.9g}"), unknown=_refuse)


def _refuse(value: Any) -> Any:
    raise TypeError(f"the journal cannot encode a {type(value).__name__}")
