"""The status that another node reports, validated: peers may send anything. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import islice
from math import isfinite
from typing import Any

from pfl_node.jsonable import json_object
from pfl_node.ops.history import MOST, HistoryPoint, figures_of
from pfl_node.wire import peer_pb2 as pb

WORD = 80  # characters of a text
PEERS = 512  # peers in one table
POINTS = 512  # points in one answer


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """The status of one node as it reports it."""

    doing: str  # starting, joining, training, done, leaving
    round: int
    rounds: int | None
    policy: str
    task: str
    uptime: float
    version: str
    samples: int | None
    head: int | None
    neighbours: list[str] | None
    bytes_sent: int
    bytes_received: int
    models_waiting: int
    waiting_for: list[str]
    waiting_left: float | None  # seconds to its last deadline
    next_round: dict[str, Any] | None  # while it waits: round, at, why
    measured: dict[str, dict[str, float]]  # by split: loss, accuracy, the task's metrics
    headline: dict[str, Any]  # the figure by which the task compares models: name, higher
    refused: dict[str, int]  # refusals by reason
    failed_calls: dict[str, int]  # failed calls by call and reason
    models_sent: dict[str, int] = field(default_factory=dict)  # models by peer
    models_received: dict[str, int] = field(default_factory=dict)
    learns_with: dict[str, float] = field(default_factory=dict)
    learned_from: dict[str, int] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """The status without the tables by peer, which the swarm's matrix contains."""
        return {k: v for k, v in asdict(self).items() if k not in ("learns_with", "learned_from")}


def peer_status(status: pb.Status) -> PeerStatus:
    details = json_object(status.json)
    reported = _mapping(details.get("told"))
    chosen = _mapping(reported.get("neighbours")).get("ids")
    return PeerStatus(
        doing=_word(status.state),
        round=status.round,
        rounds=status.rounds if status.HasField("rounds") else None,
        policy=_word(status.policy),
        task=_word(status.task),
        uptime=status.uptime if isfinite(status.uptime) else 0.0,
        version=_word(details.get("version", "")),
        samples=_whole(details.get("samples")),
        head=_whole(_mapping(reported.get("round")).get("head")),
        neighbours=_words(chosen) if isinstance(chosen, list) else None,
        bytes_sent=_whole(details.get("bytes_sent")) or 0,
        bytes_received=_whole(details.get("bytes_received")) or 0,
        models_waiting=_whole(details.get("models_waiting")) or 0,
        waiting_for=_words(details.get("waiting_for")),
        waiting_left=_longest(details.get("waiting")),
        next_round=_next_round(details.get("next_round")),
        measured=_measured(details.get("measured")),
        headline=_headline(details.get("headline")),
        refused=_counts(details.get("refused")),
        failed_calls=_counts(details.get("failed_calls")),
        models_sent=_counts(details.get("models_sent")),
        models_received=_counts(details.get("models_received")),
        learns_with=_figures(details.get("learns_with")),
        learned_from=_counts(details.get("learned_from")),
    )


def points_of(history: pb.History, after: int) -> list[HistoryPoint]:
    """The points of a history, restricted to increasing rounds."""
    found: list[HistoryPoint] = []
    for point in list(history.points)[:POINTS]:
        known = figures_of(point.figures)
        if point.round > after and known and isfinite(point.time):
            found.append(HistoryPoint(point.round, point.time, known))
            after = point.round
    return found


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _word(value: Any) -> str:
    return str(value)[:WORD] if isinstance(value, str) else ""


def _words(value: Any) -> list[str]:
    return [_word(v) for v in value[:PEERS] if isinstance(v, str)] if isinstance(value, list) else []


def _number(value: Any) -> float | None:
    fine = (
        isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300 and isfinite(value)
    )
    return float(value) if fine else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 53 else None


def _longest(value: Any) -> float | None:
    rows = value[:PEERS] if isinstance(value, list) else []
    return max((n for row in rows if (n := _number(_mapping(row).get("seconds_left"))) is not None), default=None)


def _next_round(value: Any) -> dict[str, Any] | None:
    row = _mapping(value)
    if not row:
        return None
    return {"round": _whole(row.get("round")), "at": _word(row.get("at")) or None, "why": _word(row.get("why"))}


def _figures(value: Any) -> dict[str, float]:
    rows = list(_mapping(value).items())[:PEERS]
    return {_word(k): n for k, v in rows if (n := _number(v)) is not None and n >= 0}


def _counts(value: Any) -> dict[str, int]:
    rows = list(_mapping(value).items())[:PEERS]
    return {_word(k): n for k, v in rows if (n := _whole(v)) is not None and n >= 0}


def _measured(value: Any) -> dict[str, dict[str, float]]:
    table = _mapping(value)
    return {
        split: {
            _word(w): n for w, v in islice(_mapping(table[split]).items(), MOST) if (n := _number(v)) is not None
        }
        for split in ("val", "test")
        if split in table
    }


def _headline(value: Any) -> dict[str, Any]:
    row = _mapping(value)
    return {"name": _word(row.get("name")) or "accuracy", "higher": row.get("higher") is not False}
