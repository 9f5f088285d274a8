"""What happened in a simulation: one JSON object a line, the same bytes for the same seed. Knows no real clock."""

from __future__ import annotations

import json
from pathlib import Path
from typing import IO, Any, Literal

from pfl_node.errors import StoreError
from pfl_node.jsonable import plain
from pfl_node.types import PeerId

Level = Literal["rounds", "messages"]

JSON = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)


class EventJournal:
    """Lines go to a file beside the final one, which takes its place when the run is over. No path: to nowhere."""

    def __init__(self, path: Path | None, level: Level = "messages") -> None:
        self.messages = level == "messages" and path is not None
        self._path = path
        self._part = path.with_name(f"{path.name}.part") if path else None
        self._file: IO[str] | None = None

    def write(self, time: float, node: PeerId | None, event: str, **data: Any) -> None:
        """Without a node it is something that happens to the swarm."""
        if self._part:
            own = {"time": round(time, 6), "node": node, "event": event}
            row = own | exact(data) | own
            (self._file or self._open(self._part)).write(JSON.encode(row) + "\n")

    def message(self, time: float, node: PeerId, event: str, **data: Any) -> None:
        """One of the many lines that a big run leaves out."""
        if self.messages:
            self.write(time, node, event, **data)

    def publish(self) -> None:
        """The run is over: the file gets its name."""
        if self._part and self._path:
            self.close()
            self._part.replace(self._path)

    def close(self) -> None:
        if self._file:
            self._file.close()
            self._file = None

    def _open(self, path: Path) -> IO[str]:
        """With the first line, so that a run that cannot begin leaves nothing."""
        try:
            self._file = path.open("w", encoding="utf-8", newline="\n")
        except OSError as error:
            raise StoreError(f"cannot write {path}: {error.strerror or error}") from error
        return self._file


def exact(value: Any) -> Any:
    """With nine digits of a float; what JSON does not know is an error, as its text may differ from run to run."""
    return plain(value, number=lambda f: float(f"{f:.9g}"), unknown=_refuse)


def _refuse(value: Any) -> Any:
    raise TypeError(f"a journal cannot hold a {type(value).__name__}")
