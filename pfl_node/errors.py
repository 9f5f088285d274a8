"""Exceptions, by who is at fault.

PflError
├── ConfigError           the user: a setting, a file, a name, a port; one line, exit code 2
│   ├── PolicyFailed      a policy of the user's own raised an error while it ran
│   └── Unavailable       a port, an address or a directory that may become available; exit code 1
├── TaskError             the user's task: its data or model cannot be used; one line, exit code 2
├── DeviceMemoryFull      a training needs more memory than the device has; it is skipped
├── LayoutMismatch        two models that cannot be combined
├── StoreError            a file of the node that cannot be read or written
│   └── Unusable          a checkpoint that cannot be restored; an older one may be usable
├── SimulationStuck       simulated nodes that wait for events that cannot happen
└── PeerError(peer)       another node
    ├── PeerGone          did not answer, or not in time
    │   └── PeerTimedOut  was connected, but a call or transfer took too long
    └── PeerMisbehaved    answered with something that must not be used
        └── Refused       the answer to a message that breaks a rule: reason and text
"""

from __future__ import annotations

from difflib import SequenceMatcher
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pfl_node.types import PeerId


class PflError(Exception):
    """The root of our errors; its text can be shown to users."""


class ConfigError(PflError):
    """The user asked for something that does not exist or is impossible."""


class PolicyFailed(ConfigError):
    """A policy of the user's own raised an error while it ran."""


class Unavailable(ConfigError):
    """Something of this machine is missing or in use; a later attempt may succeed."""


class TaskError(PflError):
    """The user's task cannot be used."""


class DeviceMemoryFull(PflError):
    """A training needs more memory than the device has."""


class LayoutMismatch(PflError):
    """Two models, or a model and a layout, are incompatible."""


class StoreError(PflError):
    """A file of the node cannot be read or written."""


class Unusable(StoreError):
    """A checkpoint is damaged, or intact but of another run, policy or model."""

    def __init__(self, path: Path, why: str, *, damaged: bool) -> None:
        todo = "use another --data-dir or move the file away"
        if damaged:
            todo = "restore it from a backup, or move it away to start again at round 0"
        super().__init__(f"checkpoint {path} is {why}; {todo}")
        self.path = path
        self.why = why
        self.damaged = damaged


class SimulationStuck(PflError):
    """Simulated nodes wait for events that cannot happen."""


class PeerError(PflError):
    """Another node is at fault."""

    def __init__(self, peer: PeerId | str, text: str) -> None:
        super().__init__(f"{peer}: {text}" if peer else text)
        self.peer = peer
        self.text = text


class PeerGone(PeerError):
    """The peer did not answer, or not in time."""


class PeerTimedOut(PeerGone):
    """There is a connection to the peer, but the call or transfer took too long."""


class PeerMisbehaved(PeerError):
    """The peer sent something that must not be used."""


class Reason(StrEnum):
    """Why a message was refused; a label of the metrics."""

    GARBAGE = "garbage"  # not a message of this protocol
    VERSION = "version"  # of a message format that this node does not support
    TRUNCATED = "truncated"  # ended early
    CHECKSUM = "checksum"  # bytes changed in transit
    LAYOUT = "layout"  # a model of another shape
    NOT_FINITE = "not_finite"  # NaN or infinity
    TOO_LARGE = "too_large"  # more bytes than the layout has
    BOMB = "bomb"  # decompresses to more than it may
    STALE_ROUND = "stale_round"
    FUTURE_ROUND = "future_round"
    UNKNOWN_RUN = "unknown_run"
    UNKNOWN_PEER = "unknown_peer"
    FLOOD = "flood"  # too many from one peer, or from all
    NOT_READY = "not_ready"  # the node is still starting or is stopping
    NOT_SERVED = "not_served"  # this node does not offer that service
    BUDGET = "budget"  # the peer has used up its privacy budget
    OUTLIER = "outlier"  # a model unlike those of the other peers
    QUARANTINED = "quarantined"  # a peer that sent bad messages, temporarily
    NO_TLS = "no_tls"  # only one side uses TLS
    OTHER_CA = "other_ca"  # a certificate of an untrusted CA
    EXPIRED = "expired"  # a certificate that has expired or is not valid yet
    REVOKED = "revoked"  # an id on the revocation list
    NOT_ALLOWED = "not_allowed"  # an id that is not on the allow-list, or is read-only
    IMPOSTOR = "impostor"  # the id in the message is not that of the certificate
    REJECTED = "rejected"  # the other side rejected my certificate


class Refused(PeerMisbehaved):
    """A message breaks a rule; `reason` names the rule."""

    def __init__(self, reason: Reason, text: str, peer: PeerId | str = "", *, round: int | None = None) -> None:
        super().__init__(peer, text)
        self.reason = reason
        self.round = round  # the round of the node that refuses, if relevant


SIMILAR = 0.7  # of 1; two of three letters are not enough


def nearest(word: str, known: Iterable[str]) -> str:
    """The hint at the end of an error message: the most similar known name or, if none is similar, all of them."""
    names = sorted(known)
    best = most_similar(word, names)
    return f"did you mean {best!r}?" if best else f"known: {', '.join(names)}"


def most_similar(word: str, known: Iterable[str]) -> str | None:
    best = max(sorted(known), key=lambda name: (_similarity(word, name), -len(name)), default="")
    return best if best and _similarity(word, best) >= SIMILAR else None


def _similarity(word: str, name: str) -> float:
    """From 0 to 1. The least similar part of a dotted name counts, so that a common section does not."""
    parts, others = word.split("."), name.split(".")
    if len(parts) != len(others):
        parts, others = [word], [name]
    return min(_alike(a, b) for a, b in zip(parts, others, strict=True))


def _alike(a: str, b: str) -> float:
    if a == b:
        return 1.0
    a, b = a.lower(), b.lower()
    if sorted(a) == sorted(b) or (a and b and (a.startswith(b) or b.startswith(a))):  # transposed, or shortened
        return max(SIMILAR, SequenceMatcher(None, a, b).ratio())
    return SequenceMatcher(None, a, b).ratio()
