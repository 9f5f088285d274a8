"""The pending waits of a node (peers, reason, deadline), for its status. Pure; the caller passes the time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pfl_node.types import PeerId


@dataclass(eq=False, slots=True)
class Wait:
    """One pending wait, updated by the code that waits."""

    what: str
    round: int | None = None
    peers: Iterable[PeerId] = field(default=())
    until: float | None = None  # None: unknown


class PendingWaits:
    """All pending waits of a node: a policy's main and its handlers may wait at the same time."""

    def __init__(self) -> None:
        self._open: list[Wait] = []

    @contextmanager
    def on(self, what: str, round: int | None = None) -> Iterator[Wait]:
        wait = Wait(what, round)
        self._open.append(wait)
        try:
            yield wait
        finally:
            self._open.remove(wait)

    @property
    def peers(self) -> tuple[PeerId, ...]:
        return tuple(dict.fromkeys(peer for wait in self._open for peer in wait.peers))

    def left(self, now: float) -> float | None:
        """Seconds until the last deadline; None: nothing is pending, or no deadline is known."""
        ends = [wait.until for wait in self._open if wait.until is not None and any(True for _ in wait.peers)]
        return max(0.0, max(ends) - now) if ends else None

    def table(self, now: float) -> list[dict[str, Any]]:
        return [
            {
                "what": wait.what,
                "round": wait.round,
                "peers": list(wait.peers),
                "seconds_left": None if wait.until is None else round(max(0.0, wait.until - now), 1),
            }
            for wait in self._open
            if any(True for _ in wait.peers)
        ]
