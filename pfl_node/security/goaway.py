"""A refused connection ends with HTTP/2's GOAWAY frame, which carries the reason to the caller.

The caller's connection is closed before any of its calls is read, so a status of a call could not carry it.
"""

from __future__ import annotations

from collections.abc import Iterator

from pfl_node.errors import Reason, Refused

SETTINGS, GOAWAY = 4, 7  # types of frames
HEAD = 9  # bytes of a frame before its payload
INADEQUATE_SECURITY = 12
LONGEST = 500  # bytes of text


def refusal_frames(refused: Refused) -> bytes:
    """HTTP/2 requires the settings first."""
    text = f"{refused.reason} {refused.text}".encode()[:LONGEST]
    return _frame(SETTINGS, b"") + _frame(GOAWAY, bytes(4) + INADEQUATE_SECURITY.to_bytes(4, "big") + text)


def refusal_in(data: bytes) -> Refused | None:
    """The reason in the first bytes of a server; None if it did not refuse the connection."""
    for kind, payload in _frames(data):
        if kind == GOAWAY:
            reason, _, text = payload[8:].decode("utf-8", "replace").partition(" ")
            if reason in set(Reason):
                return Refused(Reason(reason), text)
    return None


def _frame(kind: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, 0)) + bytes(4) + payload


def _frames(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= HEAD:
        size = int.from_bytes(data[:3], "big")
        yield data[3], data[HEAD : HEAD + size]
        data = data[HEAD + size :]
