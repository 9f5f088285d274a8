"""Limits the lines of a log per minute: peers can cause any number of them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic

log = logging.getLogger(__name__)

LINES = 600  # per minute; the same again for errors
MINUTE = 60.0


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
