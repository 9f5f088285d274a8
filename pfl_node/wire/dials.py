"""Which peers this node can dial: failed dials back off, and repeated ones leave a peer out. Pure.

Reports of other nodes about a peer are ignored here: only a successful dial resets the failures. News of a peer,
for example that it is alive after all, makes the next dial earlier.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from pfl_node.types import PeerId

FIRST, LONGEST = 0.5, 30.0  # seconds from a failed dial to the next one; doubled each time
JITTER = 0.25  # fraction of that wait
REPEATED = 2  # failed dials after which a peer is left out
SOONEST = 1.0  # seconds between two dials, however much news there is
PEERS = 4096


@dataclass(slots=True)
class DialRecord:
    """The last dials to a peer at one address."""

    address: str
    reached: bool = False  # whether the last dial succeeded
    failures: int = 0  # failed dials since the last successful one
    reason: str = ""  # reason of the last failure
    ended: float = float("-inf")  # when the last dial ended
    next: float = 0.0  # when the next one may begin


class Dials:
    """`changed` is called with a peer after every failed dial, and when it is reached again."""

    def __init__(self, rng: Random, changed: Callable[[PeerId], None] = lambda _: None) -> None:
        self.changed = changed
        self._rng = rng
        self._of: dict[PeerId, DialRecord] = {}

    def of(self, peer: PeerId, address: str) -> DialRecord | None:
        record = self._of.get(peer)
        return record if record is not None and record.address == address else None

    def includes(self, peer: PeerId, address: str, *, unreachable: bool = False) -> bool:
        """Whether to exchange models with a peer; `unreachable`: its record says that it cannot be dialled."""
        record = self.of(peer, address)
        if record is None:
            return not unreachable
        return record.reached if unreachable else record.failures < REPEATED

    def wait(self, peer: PeerId, address: str, now: float) -> float:
        """Seconds until the next dial; 0: now."""
        record = self.of(peer, address)
        return 0.0 if record is None else max(0.0, record.next - now)

    def succeeded(self, peer: PeerId, address: str, now: float) -> None:
        before = self.of(peer, address)
        self._keep(peer, DialRecord(address, reached=True, ended=now))
        if before is None or not before.reached:
            self.changed(peer)

    def failed(self, peer: PeerId, address: str, reason: str, now: float) -> None:
        record = self.of(peer, address) or DialRecord(address)
        record.reached, record.reason, record.ended = False, reason, now
        record.failures += 1
        wait = min(FIRST * 2 ** min(record.failures - 1, 16), LONGEST)
        record.next = now + wait * self._rng.uniform(1 - JITTER, 1 + JITTER)
        self._keep(peer, record)
        self.changed(peer)

    def dial_soon(self, peer: PeerId) -> None:
        """There is news of the peer: dial it soon."""
        record = self._of.get(peer)
        if record is not None:
            record.next = min(record.next, record.ended + SOONEST)

    def _keep(self, peer: PeerId, record: DialRecord) -> None:
        if peer not in self._of and len(self._of) >= PEERS:
            del self._of[next(iter(self._of))]
        self._of[peer] = record
