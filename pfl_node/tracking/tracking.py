"""The thread that calls the trackers of a process. A tracker that fails costs a warning, never a round."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from math import isfinite
from typing import Any

from pfl_node import plugin
from pfl_node.errors import ConfigError
from pfl_node.plugin import in_a_line, line_of
from pfl_node.settings import Settings
from pfl_node.settings.redact import for_others
from pfl_node.tracking.trackers import Open, TrackedNode, Tracker, openers
from pfl_node.types import RoundReport

log = logging.getLogger(__name__)

QUEUE = 10_000  # reports; the oldest are dropped when a tracker is too slow
GRACE = 15.0  # seconds that the trackers have to write the rest at the end
EVENTS = ("round", "finished", "reloaded")
PACKAGES = ("tensorboard", "mlflow", "wandb")

Observe = Callable[[str, Mapping[str, Any]], None]  # called with the journal entries of a node


def check_track(settings: Settings) -> None:
    """Before anything starts: are the packages installed, does the user's file exist?"""
    for name in PACKAGES:
        if getattr(settings.track, name) is not None and find_spec(name) is None:
            raise ConfigError(f"track.{name} needs a package: pip install 'pfl-node[{name}]'")
    if settings.track.call is not None:
        if ":" not in settings.track.call:
            raise ConfigError(f"track.call = {settings.track.call!r}: name a function, FILE.py:FUNCTION")
        plugin.check_place("track.call", settings.track.call, ConfigError)
        plugin.check_name("track.call", settings.track.call, ConfigError)


@dataclass
class TrackedRun:
    """One node's run in one tracker."""

    name: str
    node: TrackedNode
    open: Open
    tracker: Tracker | None = None
    failing: bool = False

    def report(self, report: RoundReport) -> None:
        if self.tracker is None:
            self.tracker = self.open(self.node)
        self.tracker.round(report)

    def close(self) -> None:
        if self.tracker is not None:
            self.tracker.close()


@dataclass
class Tracking:
    """The trackers of all nodes of this process."""

    settings: Settings
    resumes: bool = False  # whether a node continues the run of its earlier process
    _runs: dict[str, list[TrackedRun]] = field(default_factory=dict)  # by node
    _observers: dict[str, Observe] = field(default_factory=dict)
    _reports: deque[RoundReport] = field(default_factory=lambda: deque(maxlen=QUEUE))
    _dropped: int = 0
    _news: threading.Condition = field(default_factory=threading.Condition)
    _thread: threading.Thread | None = None
    _closing: bool = False

    def observer(self, id: str, name: str) -> Observe | None:
        """Called with the journal entries of a node; None: nothing is tracked, or enough other nodes are."""
        found = openers(self.settings.track)
        if id in self._observers or not found or len(self._runs) >= self.settings.track.nodes:
            return self._observers.get(id)
        node = TrackedNode(id, name, self.settings.run, self.resumes, _parameters(self.settings))
        self._runs[id] = [TrackedRun(word, node, open) for word, open in found.items()]
        last = 0

        def observe(event: str, data: Mapping[str, Any]) -> None:
            nonlocal last
            if event in EVENTS:
                last = int(data.get("round", last))
                self._put(report_of(id, name, event, {**data, "round": last}))

        self._observers[id] = observe
        return observe

    def close(self) -> None:
        """Give the trackers some seconds to write the rest."""
        if self._thread is None:
            return
        with self._news:
            self._closing = True
            self._news.notify()
        self._thread.join(GRACE)
        if self._thread.is_alive():
            log.warning("a tracker did not finish in %g s; the rest of its figures is lost", GRACE)

    def _put(self, report: RoundReport) -> None:
        with self._news:
            self._dropped += len(self._reports) == QUEUE
            if self._dropped == 1:
                log.warning("a tracker is too slow: some rounds are not tracked")
            self._reports.append(report)
            self._news.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="tracking", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while report := self._next():
            for run in self._runs[report.node]:
                self._attempt(run, run.report, report)
        for runs in self._runs.values():
            for run in runs:
                self._attempt(run, run.close)

    def _next(self) -> RoundReport | None:
        with self._news:
            while not (self._reports or self._closing):
                self._news.wait()
            return self._reports.popleft() if self._reports else None

    def _attempt(self, run: TrackedRun, act: Callable[..., None], *given: Any) -> None:
        """Warn once, until it works again."""
        try:
            act(*given)
            run.failing = False
        except (Exception, SystemExit) as error:  # a user's function and three services
            if not run.failing:
                why = f"{in_a_line(error)}{line_of(error)}"
                log.warning("tracking of %s with %s failed; training goes on: %s", run.node.name, run.name, why)
            run.failing = True


@contextmanager
def tracking(settings: Settings) -> Iterator[Tracking]:
    found = Tracking(settings)
    try:
        yield found
    finally:
        found.close()


def both(first: Observe | None, second: Observe | None) -> Observe | None:
    if first is None or second is None:
        return first or second

    def observe(event: str, data: Mapping[str, Any]) -> None:
        first(event, data)
        second(event, data)

    return observe


def report_of(node: str, name: str, event: str, row: Mapping[str, Any]) -> RoundReport:
    """The finite numbers of a journal entry are the figures."""
    numbers = {
        key: float(value)
        for key, value in row.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    }
    round = int(numbers.pop("round", 0))
    return RoundReport(node=node, name=name, event=event, round=round, figures=numbers, data=dict(row))


def _parameters(settings: Settings) -> dict[str, str]:
    """The settings that a comparison of runs needs, without secrets."""
    tree = for_others(settings)
    flat = {key: tree[key] for key in ("run", "seed", "rounds")}
    for section in ("policy", "task", "train", "aggregate"):
        flat |= {f"{section}.{key}": value for key, value in tree[section].items()}
    return {key: str(value)[:250] for key, value in flat.items() if value is not None}
