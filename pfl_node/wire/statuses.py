"""Refusals as gRPC statuses and back; the reason and the round are sent in the trailing metadata."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from pfl_node.errors import PeerGone, PeerTimedOut, Reason, Refused
from pfl_node.types import PeerId

M = TypeVar("M", bound=Message)

REASON_KEY = "pfl-reason"
ROUND_KEY = "pfl-round"  # the round of the node that refuses
DIGITS = 18  # largest number of digits of a round

STATUS: dict[Reason, grpc.StatusCode] = {
    Reason.GARBAGE: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.TRUNCATED: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.NOT_FINITE: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.CHECKSUM: grpc.StatusCode.DATA_LOSS,
    Reason.VERSION: grpc.StatusCode.FAILED_PRECONDITION,
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

# gRPC limits the time until bytes are acknowledged (TCP_USER_TIMEOUT) to its keepalive timeout, which a slow link
# exceeds. A failed connect times out as well, but has another text.
UNACKNOWLEDGED = re.compile(r"(recv|send)msg:.*timed out", re.IGNORECASE)
# For a status without our reason: from gRPC itself, or from a server that is not a node.
UNEXPLAINED = {
    grpc.StatusCode.RESOURCE_EXHAUSTED: Reason.FLOOD,
    grpc.StatusCode.UNIMPLEMENTED: Reason.NOT_SERVED,
    grpc.StatusCode.INVALID_ARGUMENT: Reason.GARBAGE,
    grpc.StatusCode.PERMISSION_DENIED: Reason.UNKNOWN_PEER,
    grpc.StatusCode.UNAUTHENTICATED: Reason.UNKNOWN_PEER,
}


def parsed(kind: type[M], message: bytes) -> M:
    """Raises Refused if the message is not of this kind."""
    try:
        return kind.FromString(message)
    except DecodeError as error:
        raise Refused(Reason.GARBAGE, f"the message is not a {kind.DESCRIPTOR.name}") from error


def refusal_metadata(refused: Refused) -> tuple[tuple[str, str], ...]:
    reason = (REASON_KEY, str(refused.reason))
    return (reason,) if refused.round is None else (reason, (ROUND_KEY, str(refused.round)))


def error_from_status(error: grpc.aio.AioRpcError, peer: PeerId) -> PeerGone | Refused:
    """Refused with the peer's reason or, without one, with a reason guessed from the status; else PeerGone."""
    code, text = error.code(), error.details() or error.code().name
    metadata = _metadata(error)
    if given := reason_of(error):
        round = metadata.get(ROUND_KEY, "")
        valid = round.isascii() and round.isdigit() and len(round) <= DIGITS
        return Refused(given, text, peer, round=int(round) if valid else None)
    reason = UNEXPLAINED.get(code)
    if reason is None or REASON_KEY in metadata:
        late = code is grpc.StatusCode.DEADLINE_EXCEEDED or UNACKNOWLEDGED.search(text)
        return (PeerTimedOut if late else PeerGone)(peer, f"{code.name.lower()}: {text}")
    return Refused(Reason.TOO_LARGE if "larger than max" in text else reason, text, peer)


def reason_of(error: grpc.aio.AioRpcError) -> Reason | None:
    """The reason in the metadata, if there is a known one."""
    given = _metadata(error).get(REASON_KEY)
    return Reason(given) if given in set(Reason) else None


def _metadata(error: grpc.aio.AioRpcError) -> dict[str, str]:
    metadata: Any = error.trailing_metadata() or ()
    return {key: str(value) for key, value in metadata}
