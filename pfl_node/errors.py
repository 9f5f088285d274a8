"""Everything that can go wrong, split by who is at fault.

PflError
├── ConfigError           the user: a setting, a file, a name, a port; one line, exit code 2
├── TaskError             the user's task: its data or model cannot be used; one line, exit code 2
├── LayoutMismatch        two models that cannot be combined
├── StoreError            a file of ours that cannot be read or written
│   └── Unusable          a checkpoint that cannot be gone on from; another may
├── SimulationStuck       simulated nodes that wait for what cannot come
└── PeerError(peer)       somebody else
    ├── PeerGone          did not answer, or not in time
    └── PeerMisbehaved    answered with something that must not be used
        └── Refused       what we answer to a message that breaks a rule: reason and text
"""

from __future__ import annotations

from difflib import get_close_matches
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pfl_node.types import PeerId


class PflError(Exception):
    """The root of our errors; its text is fit to be shown to a user."""


class ConfigError(PflError):
    """The user asked for something that does not exist or cannot be."""


class TaskError(PflError):
    """The user's task cannot be used."""


class LayoutMismatch(PflError):
    """Two models, or a model and a layout, do not fit each other."""


class StoreError(PflError):
    """A file of the node cannot be read or written."""


class Unusable(StoreError):
    """A checkpoint is damaged, or whole and of something else."""

    def __init__(self, path: Path, why: str, *, damaged: bool) -> None:
        todo = "use another --data-dir or move the file away"
        if damaged:
            todo = "restore it from a backup, or move it away to start anew at round 0"
        super().__init__(f"checkpoint {path} is {why}; {todo}")
        self.path = path
        self.why = why
        self.damaged = damaged


class SimulationStuck(PflError):
    """Simulated nodes wait for what cannot come."""


class PeerError(PflError):
    """Somebody else is at fault."""

    def __init__(self, peer: PeerId | str, text: str) -> None:
        super().__init__(f"{peer}: {text}" if peer else text)
        self.peer = peer
        self.text = text


class PeerGone(PeerError):
    """The peer did not answer, or not in time."""


class PeerMisbehaved(PeerError):
    """The peer sent something that must not be used."""


class Reason(StrEnum):
    """Why a message was refused; the label of the counter."""

    GARBAGE = "garbage"  # not a message of ours
    TRUNCATED = "truncated"  # ended early
    CHECKSUM = "checksum"  # bytes changed on the way
    LAYOUT = "layout"  # a model of another shape
    NOT_FINITE = "not_finite"  # NaN or infinity
    TOO_LARGE = "too_large"  # more bytes than the layout has
    BOMB = "bomb"  # unpacks to more than it may
    STALE_ROUND = "stale_round"
    FUTURE_ROUND = "future_round"
    UNKNOWN_RUN = "unknown_run"
    UNKNOWN_PEER = "unknown_peer"
    FLOOD = "flood"  # too many from one peer, or in all
    NOT_READY = "not_ready"  # the node is still starting or is stopping
    NOT_SERVED = "not_served"  # this node does not offer that service
    BUDGET = "budget"  # a peer that has heard as much about this node's data as it may
    OUTLIER = "outlier"  # a model far outside of what others send
    QUARANTINED = "quarantined"  # a peer whose messages were bad, for a while
    NO_TLS = "no_tls"  # one side speaks TLS, the other does not
    OTHER_CA = "other_ca"  # a certificate of somebody whom this side does not believe
    EXPIRED = "expired"  # a certificate that holds no more, or not yet
    REVOKED = "revoked"  # an id on the list of revoked ones
    NOT_ALLOWED = "not_allowed"  # an id that is not on the allow-list, or one that may only look
    IMPOSTOR = "impostor"  # not who TLS says it is
    REJECTED = "rejected"  # the other side did not take my certificate


class Refused(PeerMisbehaved):
    """A message that breaks a rule, with the rule's name."""

    def __init__(self, reason: Reason, text: str, peer: PeerId | str = "", *, round: int | None = None) -> None:
        super().__init__(peer, text)
        self.reason = reason
        self.round = round  # in which whoever refuses is, if that matters


def nearest(word: str, known: Iterable[str]) -> str:
    """The end of an error line: the nearest known name, or all of them."""
    names = sorted(known)
    lower = {name.lower(): name for name in names}
    close = get_close_matches(word, names, n=1) or [
        lower[name] for name in get_close_matches(word.lower(), lower, n=1)
    ]
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(names)}"
