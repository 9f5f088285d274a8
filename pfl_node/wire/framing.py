"""Serializes and parses ModelChunk messages without protobuf's copies of the data. Sans-io.

Messages of other clients, whose fields may be laid out differently, go through protobuf's parser.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from google.protobuf.message import DecodeError

from pfl_node.errors import Reason, Refused
from pfl_node.wire import peer_pb2 as pb

MAX_HEADER = 3 << 17  # bytes; the maximum number of notes with keys of 64 characters takes 308 KiB

HEADER, DATA, TRAILER = 0x0A, 0x12, 0x1A  # tags: field 1, 2 and 3, length-delimited
PADDING = 0x72  # field 14 of the header
_TRAILER = struct.Struct("<BBBQ")  # field 3 of 9 bytes: its field 1, a fixed64
ALIGNMENT = 16  # bytes; alignment of the data in a message, which allocated memory has at least
SPARE = 4096  # bytes besides the data that may be kept in memory with it


class Chunk(NamedTuple):
    header: pb.Header | None
    data: memoryview
    trailer: pb.Trailer | None


def frame(header: pb.Header | None, data: memoryview, checksum: int | None) -> bytes:
    """A serialized ModelChunk; copies the data once. A checksum adds the trailer."""
    size = _varint(data.nbytes)
    before = b"" if header is None else _aligned(header.SerializeToString(), 1 + len(size))
    after = b"" if checksum is None else _TRAILER.pack(TRAILER, 9, 0x09, checksum)
    return b"".join((before, b"\x12", size, data, after)) if data.nbytes else before + after


def _aligned(header: bytes, more: int) -> bytes:
    """The header field, padded so that the data, `more` bytes behind it, is aligned: a receiver can then use the
    data without a copy."""
    bare = len(header) + 2  # with tag and length of the padding
    room = -(1 + _width(bare) + bare + more) % ALIGNMENT
    if _width(bare + room) > _width(bare):
        room = (room - 1) % ALIGNMENT  # the field's length takes one more byte
    return b"".join((b"\x0a", _varint(bare + room), header, bytes((PADDING, room)), bytes(room)))


def _width(number: int) -> int:
    return max(1, -(-number.bit_length() // 7))


def parse(message: bytes) -> Chunk:
    """The data is usually a view of the message. Raises Refused if the message is not a ModelChunk."""
    spans = _spans(message)
    try:
        if spans is None:
            chunk = pb.ModelChunk.FromString(message)
            header = chunk.header if chunk.HasField("header") else None
            _check_header(header.ByteSize() if header else 0)
            return Chunk(header, memoryview(chunk.data), chunk.trailer if chunk.HasField("trailer") else None)
        at, trailer = spans.get(HEADER), spans.get(TRAILER)
        _check_header(at.stop - at.start if at else 0)
        return Chunk(
            pb.Header.FromString(message[at]) if at else None,
            _data(message, spans.get(DATA, slice(0))),
            pb.Trailer.FromString(message[trailer]) if trailer else None,
        )
    except DecodeError as error:
        raise Refused(Reason.GARBAGE, "the message is not a ModelChunk") from error


def payload_bytes(message: bytes) -> int:
    """Bytes of data in a serialized ModelChunk of ours."""
    span = (_spans(message) or {}).get(DATA, slice(0, 0))
    return int(span.stop - span.start)


def _data(message: bytes, span: slice) -> memoryview:
    """A view keeps the whole message in memory. If much of it is not data, the data is copied: otherwise a sender
    could make a small model hold arbitrary amounts of memory."""
    data = memoryview(message)[span]
    return data if len(message) - len(data) <= SPARE else memoryview(bytes(data))


def _spans(message: bytes) -> dict[int, slice] | None:
    """The positions of the fields; None if the layout is not ours, whether valid or not."""
    spans: dict[int, slice] = {}
    at, end = 0, len(message)
    while at < end:
        tag = message[at]
        if tag not in (HEADER, DATA, TRAILER) or tag in spans:
            return None
        size, at = _read_varint(message, at + 1)
        if size < 0 or at + size > end:
            return None
        spans[tag] = slice(at, at + size)
        at += size
    return spans


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    """The number and its end; -1 if it has more than 5 bytes."""
    number = shift = 0
    for byte in message[at : at + 5]:
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
    return -1, at


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _check_header(size: int) -> None:
    if size > MAX_HEADER:
        raise Refused(Reason.TOO_LARGE, f"a header of {size} bytes; {MAX_HEADER} are allowed")
