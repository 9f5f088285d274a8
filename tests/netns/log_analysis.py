"""What happened in a lab, from the logs of its hosts and the times of its kills. Pure: knows no process."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import inf
from typing import Any

LATE = 10.0  # seconds after a return in which its old death may still be told
TOLD = {"joined", "suspected", "died", "left"}


@dataclass(slots=True)
class Life:
    """Of a host's process; seconds since 1970."""

    started: float
    killed: float = inf


@dataclass(frozen=True, slots=True, order=True)
class Said:
    """One line of a host's log about another member."""

    time: float
    by: str
    what: str
    about: str  # address of the host, without its port


def read(by: str, lines: Iterable[str]) -> list[Said]:
    """What a host said of others. Half a line, or one that is no JSON, is passed over."""
    found = []
    for line in lines:
        if '"address"' not in line:
            continue
        try:
            row: Any = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and row.get("event") in TOLD:
            when = datetime.fromisoformat(row["timestamp"]).timestamp()
            found.append(Said(when, by, row["event"], row["address"].rpartition(":")[0]))
    return found


Lives = Mapping[str, Sequence[Life]]


@dataclass(frozen=True, slots=True)
class Deaths:
    """How often somebody was said to be dead."""

    true: int
    late: int  # it had been, and was back for less than ten seconds
    false: tuple[Said, ...]


def deaths(said: Sequence[Said], lives: Lives) -> Deaths:
    """A life begins for the others when the first of them says so."""
    came = {host: [_came(said, host, life) for life in every] for host, every in lives.items()}
    true, late, false = 0, 0, []
    for row in said:
        if row.what != "died":
            continue
        spans = [(c, life.killed) for c, life in zip(came[row.about], lives[row.about], strict=True)]
        now = [(n, c) for n, (c, end) in enumerate(spans) if c <= row.time < end]
        if not now:
            true += 1
        elif now[0][0] > 0 and row.time - now[0][1] <= LATE:
            late += 1
        else:
            false.append(row)
    return Deaths(true, late, tuple(false))


def _came(said: Sequence[Said], host: str, life: Life) -> float:
    times = (s.time for s in said if s.what == "joined" and s.about == host and s.time >= life.started)
    return min(times, default=inf)


def noticed(said: Sequence[Said], host: str, when: float, observers: Iterable[str]) -> dict[str, float]:
    """Seconds until each of them said that the host is dead; inf: it never did."""
    found = dict.fromkeys(observers, inf)
    for row in said:
        if row.what == "died" and row.about == host and row.time >= when and row.by in found:
            found[row.by] = min(found[row.by], row.time - when)
    return found


def views(said: Sequence[Said], until: float = inf) -> dict[str, set[str]]:
    """Whom each observer takes for present at that time."""
    found: dict[str, set[str]] = {}
    for row in sorted(said):
        if row.time > until:
            break
        _follow(found.setdefault(row.by, set()), row)
    return found


def _follow(view: set[str], row: Said) -> None:
    """A suspect is present, also one that was dead before: two sides that meet again suspect each other first."""
    if row.what in ("died", "left"):
        view.discard(row.about)
    else:
        view.add(row.about)


def complete_at(said: Sequence[Said], hosts: Sequence[str], since: float) -> float:
    """Seconds from then on until everybody has everybody in its view, and loses nobody again; inf: never."""
    seen: dict[str, set[str]] = {host: {host} for host in hosts}
    here = set(hosts)
    done = inf
    for row in sorted(said):
        if row.by not in here or row.about not in here:
            continue
        _follow(seen[row.by], row)
        full = all(view == here for view in seen.values())
        done = min(done, row.time) if full else inf
    return max(0.0, done - since)


@dataclass(frozen=True, slots=True)
class Round:
    """One of one life."""

    number: int
    ended: float
    seconds: float
    learning: float  # of these
    accuracy: float | None


def rounds(journal: Iterable[str]) -> list[Round]:
    """From a journal. The first of a life is counted from its `started`."""
    found: list[Round] = []
    before: float | None = None
    learnt = 0.0
    for line in journal:
        try:
            row: Any = json.loads(line)
        except ValueError:
            continue
        if row["event"] == "started":
            before, learnt = row["time"], 0.0
        elif row["event"] == "round" and before is not None:
            learning, learnt = row["learning_seconds"] - learnt, row["learning_seconds"]
            took = row["time"] - before
            found.append(Round(row["round"], row["time"], took, learning, row.get("test_accuracy")))
            before = row["time"]
    return found
