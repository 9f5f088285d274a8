"""A refusal as a gRPC status and back: the reason, and what belongs to it, travel in the trailing metadata."""

from __future__ import annotations

from typing import Any

import grpc

from pfl_node.errors import PeerGone, Reason, Refused
from pfl_node.types import PeerId

REASON_KEY = "pfl-reason"
ROUND_KEY = "pfl-round"  # of the one who refuses
DIGITS = 18  # that a round may have

STATUS: dict[Reason, grpc.StatusCode] = {
    Reason.GARBAGE: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.TRUNCATED: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.NOT_FINITE: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.CHECKSUM: grpc.StatusCode.DATA_LOSS,
    Reason.LAYOUT: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.UNKNOWN_RUN: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.STALE_ROUND: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.FUTURE_ROUND: grpc.StatusCode.OUT_OF_RANGE,
    Reason.TOO_LARGE: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Reason.BOMB: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Reason.FLOOD: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Reason.UNKNOWN_PEER: grpc.StatusCode.PERMISSION_DENIED,
    Reason.NOT_READY: grpc.StatusCode.UNAVAILABLE,
    Reason.NOT_SERVED: grpc.StatusCode.UNIMPLEMENTED,
    Reason.BUDGET: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Reason.OUTLIER: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.QUARANTINED: grpc.StatusCode.PERMISSION_DENIED,
    Reason.NO_TLS: grpc.StatusCode.UNAUTHENTICATED,
    Reason.OTHER_CA: grpc.StatusCode.UNAUTHENTICATED,
    Reason.EXPIRED: grpc.StatusCode.UNAUTHENTICATED,
    Reason.IMPOSTOR: grpc.StatusCode.UNAUTHENTICATED,
    Reason.REJECTED: grpc.StatusCode.UNAUTHENTICATED,
    Reason.REVOKED: grpc.StatusCode.PERMISSION_DENIED,
    Reason.NOT_ALLOWED: grpc.StatusCode.PERMISSION_DENIED,
}

# A status without a reason of ours: from gRPC itself, or from something else that listens there.
UNEXPLAINED = {
    grpc.StatusCode.RESOURCE_EXHAUSTED: Reason.FLOOD,
    grpc.StatusCode.UNIMPLEMENTED: Reason.NOT_SERVED,
    grpc.StatusCode.INVALID_ARGUMENT: Reason.GARBAGE,
    grpc.StatusCode.PERMISSION_DENIED: Reason.UNKNOWN_PEER,
    grpc.StatusCode.UNAUTHENTICATED: Reason.UNKNOWN_PEER,
}


def refusal_metadata(refused: Refused) -> tuple[tuple[str, str], ...]:
    """The metadata of a refusal."""
    reason = (REASON_KEY, str(refused.reason))
    return (reason,) if refused.round is None else (reason, (ROUND_KEY, str(refused.round)))


def error_from_status(error: grpc.aio.AioRpcError, peer: PeerId) -> PeerGone | Refused:
    """The peer's own reason, if it gave one; else a guess from the status; else it is gone."""
    code, text = error.code(), error.details() or error.code().name
    metadata: Any = error.trailing_metadata() or ()
    told = dict(metadata)
    given, round = told.get(REASON_KEY), str(told.get(ROUND_KEY, ""))
    if given in set(Reason):
        known = round.isascii() and round.isdigit() and len(round) <= DIGITS
        return Refused(Reason(given), text, peer, round=int(round) if known else None)
    reason = UNEXPLAINED.get(code)
    if reason is None or given is not None:
        return PeerGone(peer, f"{code.name.lower()}: {text}")
    return Refused(Reason.TOO_LARGE if "larger than max" in text else reason, text, peer)
