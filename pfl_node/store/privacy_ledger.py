"""The ledger of privacy costs: each line is on disk before the answer or training that it records.

A checkpoint would be too late: a peer that can crash a node would reset its budget.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import structlog

from pfl_node.errors import StoreError
from pfl_node.store.atomic import sync_directory, writing
from pfl_node.store.data_dir import JOURNAL
from pfl_node.store.journal import Journal, last_round

log = structlog.get_logger(__name__)

NAME = "privacy.jsonl"


class PrivacyLedger:
    """Thread-safe."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / NAME
        self._writing = threading.Lock()

    def begin(self) -> None:
        """Create the file, so that a later start notices its absence."""
        if self.path.exists():
            return
        if last_round(self.path.with_name(JOURNAL)) is not None:
            log.warning(f"{NAME} is missing although the journal has rounds: earlier disclosures are not counted")
        with writing(self.path):
            self.path.touch()
            sync_directory(self.path.parent)

    def __call__(self, event: str, data: Mapping[str, Any]) -> None:
        """Raises StoreError if the disk does not accept the line. After a crash, an incomplete line was never
        disclosed."""
        with self._writing:
            new = not self.path.exists()
            journal = Journal(self.path)
            try:
                journal.write(event, data, time=time.time())
                journal.sync()
            finally:
                journal.close()
            if new:
                with writing(self.path):
                    sync_directory(self.path.parent)

    def rows(self) -> Iterator[dict[str, Any]]:
        """All complete lines. An incomplete last line is ignored; other damage is an error, because it hides what
        was spent."""
        try:
            lines = self.path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return
        except OSError as error:
            raise StoreError(f"cannot read {self.path}: {error.strerror or error}") from error
        for n, line in enumerate(lines[:-1], 1):
            if not line:
                continue
            try:
                row = json.loads(line)
                row["event"]
            except (ValueError, TypeError, KeyError):
                raise self.damaged(n) from None
            yield row

    def damaged(self, line: int) -> StoreError:
        return StoreError(
            f"{self.path} is damaged in line {line}, so the privacy budget that was spent is unknown; "
            "restore it from a backup, or move it away to start with full budgets"
        )
