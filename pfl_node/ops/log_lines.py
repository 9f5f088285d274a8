"""The format of log lines, and a limit per minute: peers can cause any number of them. Without structlog."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from time import monotonic
from typing import Any, TextIO

log = logging.getLogger(__name__)

LINES = 600  # per minute, and as many errors
MINUTE = 60.0


def for_people(format: str, *streams: TextIO) -> bool:
    """Text for people rather than JSON: as configured or, with "auto", if one of the streams is a terminal."""
    return format == "console" or (format == "auto" and any(stream.isatty() for stream in streams))


def as_line(event: str, **facts: Any) -> str:
    """A line in the format of the log, for output that does not depend on the level."""
    moment = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    return json.dumps({"timestamp": moment, "level": "info", "event": event, **facts}, ensure_ascii=False)


class LogLimit(logging.Filter):
    """Passes LINES lines per minute, and logs how many it suppressed."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._begin = clock()
        self._passed = {False: 0, True: 0}  # other lines, errors
        self._suppressed = 0

    def filter(self, record: logging.LogRecord) -> bool:
        if self._clock() >= self._begin + MINUTE:
            self._begin, self._passed = self._clock(), {False: 0, True: 0}
            suppressed, self._suppressed = self._suppressed, 0
            if suppressed:
                log.warning("suppressed %d lines of the log in the last minute", suppressed)
        error = record.levelno >= logging.ERROR
        self._passed[error] += 1
        if self._passed[error] > LINES:
            self._suppressed += 1
            return False
        return True
