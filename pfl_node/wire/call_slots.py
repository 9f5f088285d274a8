"""Which calls may run at the same time. Pure; time is passed in.

A call without a complete first message is *unread*: it holds memory for what has arrived, and its caller is not
known yet. Unread calls are evicted for others, beginning with the oldest one of the caller that has most of them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from pfl_node.errors import Reason, Refused

PER_CALLER = 64  # calls of one caller
RESERVE = 8  # calls that a caller may have although all slots are taken
FRESH = 1.0  # seconds for which an unread call is not evicted…
BURST = 4  # …unless there are this many times too many
QUIET = 5.0  # seconds without a byte after which an unread call ends
LONGEST = 100.0  # seconds for the first message: 1.5 MB at 16 kB/s


@dataclass(slots=True, eq=False)
class CallSlot:
    caller: str
    began: float


class CallSlots:
    """At most `most` calls, and `unread` unread ones."""

    def __init__(self, most: int, unread: int) -> None:
        self.most = most
        self.unread = unread
        self._calls: Counter[str] = Counter()
        self._unread: dict[CallSlot, None] = {}  # oldest first

    def __len__(self) -> int:
        return self._calls.total()

    def begin(self, caller: str, now: float) -> tuple[CallSlot, CallSlot | None]:
        """The slot of a new call, and the unread call that must end for it. Raises Refused."""
        mine = self._calls[caller]
        if mine >= PER_CALLER:
            raise Refused(Reason.FLOOD, f"{mine} of your calls are in progress; wait for them")
        if len(self) >= (2 * self.most if mine < RESERVE else self.most):
            raise Refused(Reason.FLOOD, f"{len(self)} calls are in progress here; try again later")
        evicted = self._crowded(now) if len(self._unread) >= self.unread else None
        slot = CallSlot(caller, now)
        self._calls[caller] += 1
        self._unread[slot] = None
        return slot, evicted

    def heard(self, slot: CallSlot) -> None:
        """The first message of the call is complete."""
        self._unread.pop(slot, None)

    def end(self, slot: CallSlot) -> None:
        self._unread.pop(slot, None)
        self._calls[slot.caller] -= 1
        if not self._calls[slot.caller]:
            del self._calls[slot.caller]

    def late(self, slot: CallSlot, now: float, active: float) -> bool:
        """Whether the first message is overdue; `active`: when the last byte arrived on the call's connection."""
        age = now - slot.began
        return slot in self._unread and (age > LONGEST or min(age, now - active) > QUIET)

    def _crowded(self, now: float) -> CallSlot | None:
        caller = Counter(slot.caller for slot in self._unread).most_common(1)[0][0]
        oldest = next(slot for slot in self._unread if slot.caller == caller)
        if now - oldest.began < FRESH and len(self._unread) < BURST * self.unread:
            return None
        del self._unread[oldest]
        return oldest
