"""Events of a node as plain values: the last ones of every kind are kept, and watchers are notified."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from pfl_node.jsonable import plain

log = structlog.get_logger(__name__)

# All kinds. The last events of each kind are kept separately, so that many models do not displace one death.
KINDS: dict[str, str] = {
    "opened": "the port is open: version, address, settings without secrets",
    "started": "the node has joined and its policy begins: round, samples",
    "waiting": "the next round begins later: `round`, `at` (null: when another node joins), `why` (the setting)",
    "round": "a round is done: its figures, and data of the policy",
    "told": "the policy recorded an event: `what`, and its data",
    "sent": "a model was sent to a peer: `call`, `peer`, `bytes`",
    "received": "a model was received from a peer: `call`, `peer`, `bytes`",
    "refused": "a message of a peer was refused: `call`, `peer`, `reason`, `bytes`",
    "kept_out": "the guard refused a peer's model: `peer`, `reason`",
    "quarantined": "a peer that sent bad messages is quarantined: `peer`, `reason`, `seconds`",
    "given_up": "a round continued without models that missed the deadline: `round`, `peers`, `seconds`",
    "failed": "a call to a peer failed: `call`, `peer`, `reason`, `text`",
    "joined": "a member joined or returned",
    "suspected": "a member does not answer; it may still refute the suspicion",
    "changed": "a member refuted a suspicion, or changed its address or name",
    "died": "a member was declared dead",
    "left": "a member left",
    "reachability": "whether others can connect to this node has changed: `state`, `address`, `asked`, `relays`",
    "reloaded": "the task was called again and its data is in use: `round`, `samples`, `by_split`",
    "reload_failed": "the task was called again and failed; the old data stays in use: `error`",
    "checkpoint": "a checkpoint was written: `round`, `seconds`",
    "checkpoint_failed": "a checkpoint was not written: `error`",
    "warning": "a condition that needs attention: `text`",
    "finished": "the run is over: `how`",
    "lost": "a watcher was too slow: `count` events are missing",
}
KEPT = 256  # events of each kind
PER_MINUTE = 6000  # events of one kind that are kept and sent; peers can cause any number of some kinds
MINUTE = 60.0
QUEUE = 512  # events queued for one watcher
WATCHERS = 32


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """One event. Numbers increase by one; time is in seconds since 1970."""

    number: int
    time: float
    kind: str
    data: Mapping[str, Any]

    def plain(self) -> dict[str, Any]:
        own = {"number": self.number, "time": round(self.time, 3), "kind": self.kind}
        return {**own, "data": plain(self.data)}


class TooManyWatchers(Exception):
    """The limit of watchers is reached."""


class Hub:
    """All events of a node pass through here, on the event loop."""

    def __init__(self, kept: int = KEPT, clock: Callable[[], float] = time.time) -> None:
        self.counts: Counter[str] = Counter()  # number of events by kind, since the start
        self.closed = False
        self._kept = {kind: deque[NodeEvent](maxlen=kept) for kind in KINDS}
        self._clock = clock
        self._number = 0
        self._watches: set[Watch] = set()
        self._listeners: list[Callable[[NodeEvent], None]] = []
        self._minute = clock()  # when the present minute began
        self._this_minute: Counter[str] = Counter()  # number of events by kind, in this minute

    def tell(self, kind: str, data: Mapping[str, Any]) -> None:
        """The hub owns `data` from now on; an unknown kind is a bug."""
        self._number += 1
        event = NodeEvent(self._number, self._clock(), kind, data)
        self.counts[kind] += 1
        for listener in self._listeners:
            listener(event)
        if self._too_many(event):
            for watch in self._watches:
                watch.miss(event)
            return
        self._kept[kind].append(event)
        for watch in self._watches:
            watch.put(event)

    def _too_many(self, event: NodeEvent) -> bool:
        if not self._minute <= event.time < self._minute + MINUTE:
            self._minute = event.time
            self._this_minute.clear()
        self._this_minute[event.kind] += 1
        return self._this_minute[event.kind] > PER_MINUTE

    def warn(self, text: str, **data: Any) -> None:
        """Log a warning, and notify watchers."""
        log.warning(text, **data)
        self.tell("warning", {"text": text, **data})

    def listen(self, listener: Callable[[NodeEvent], None]) -> None:
        """Called synchronously with every later event; must be fast and must not raise."""
        self._listeners.append(listener)

    def recent(self, *, after: int = 0, kinds: Collection[str] = (), last: int | None = None) -> list[NodeEvent]:
        """The kept events, oldest first. No kinds: all."""
        rings = [ring for kind, ring in self._kept.items() if not kinds or kind in kinds]
        found = sorted((e for ring in rings for e in ring if e.number > after), key=lambda e: e.number)
        return found if last is None else found[max(0, len(found) - last) :]

    def watch(self, kinds: Collection[str] = (), limit: int = QUEUE) -> Watch:
        """Later events for one watcher: `with hub.watch() as watch: async for event in watch`."""
        return Watch(self, frozenset(kinds), limit)

    @property
    def watchers(self) -> int:
        return len(self._watches)

    def close(self) -> None:
        """Watchers get the queued events, then their iteration ends."""
        self.closed = True
        for watch in self._watches:
            watch.end()

    def enter(self, watch: Watch) -> None:
        if len(self._watches) >= WATCHERS:
            raise TooManyWatchers(f"there are {WATCHERS} watchers already")
        self._watches.add(watch)

    def leave(self, watch: Watch) -> None:
        self._watches.discard(watch)


class Watch:
    """A bounded queue between the hub and one watcher. A slow watcher loses the oldest events and gets their
    number."""

    def __init__(self, hub: Hub, kinds: frozenset[str], limit: int) -> None:
        self._hub = hub
        self._kinds = kinds
        self._queue: deque[NodeEvent] = deque(maxlen=limit)
        self._lost = 0
        self._news = asyncio.Event()
        self._closing = asyncio.Event()

    def __enter__(self) -> Watch:
        self._hub.enter(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._hub.leave(self)

    def put(self, event: NodeEvent) -> None:
        if self._kinds and event.kind not in self._kinds:
            return
        self._lost += len(self._queue) == self._queue.maxlen
        self._queue.append(event)
        self._news.set()

    def miss(self, event: NodeEvent) -> None:
        """Count an event that is not sent; the watcher learns the number with the next one."""
        self._lost += not self._kinds or event.kind in self._kinds

    def end(self) -> None:
        self._news.set()
        self._closing.set()

    def take(self) -> list[NodeEvent]:
        """The queued events, without waiting."""
        self._news.clear()
        found = list(self._queue)
        self._queue.clear()
        if self._lost and found:
            first = found[0]
            found.insert(0, NodeEvent(first.number - 1, first.time, "lost", {"count": self._lost}))
            self._lost = 0
        return found

    async def pause(self, seconds: float) -> None:
        """Wait this long, or until the node closes; events may accumulate meanwhile."""
        try:
            async with asyncio.timeout(seconds):
                await self._closing.wait()
        except TimeoutError:
            return

    async def some(self) -> list[NodeEvent]:
        """Events since the last call, at least one; none: the node has closed."""
        while not self._queue and not self._hub.closed:
            self._news.clear()
            await self._news.wait()
        return self.take()
