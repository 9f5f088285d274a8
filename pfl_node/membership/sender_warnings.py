"""Log lines about senders of membership messages, limited per sender: a sender can cause any number of them."""

from __future__ import annotations

import logging
from collections.abc import Callable

log = logging.getLogger(__name__)

WARN_INTERVAL = 60.0  # seconds between log lines about the same sender
WARNINGS_LIMIT = 256  # number of senders


class SenderWarnings:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._next: dict[str, float] = {}  # by sender: when the next warning about it may be logged

    def warn(self, about: str, text: str, *arguments: object) -> None:
        """Log a warning about a sender, at most once a minute for each."""
        now = self._clock()
        if now < self._next.get(about, now):
            return
        if len(self._next) >= WARNINGS_LIMIT:
            self._next.clear()
        self._next[about] = now + WARN_INTERVAL
        log.warning(text, *arguments)
