"""A model, a part of one or predictions to serialized chunks and back. Sans-io: knows no grpc and no asyncio.

Everything the header says is checked before memory is taken; then each chunk goes straight to its place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, cast, get_args

import xxhash
import zstandard

from pfl_node.errors import Reason, Refused
from pfl_node.model import Layout, Model
from pfl_node.settings import WireSettings
from pfl_node.types import Envelope, Offer, Part, PeerId
from pfl_node.wire import peer_pb2 as pb
from pfl_node.wire.encodings import PACKED, PLAIN, Coding
from pfl_node.wire.framing import Chunk, frame, parse
from pfl_node.wire.vector_reader import ZSTD_WINDOW_LOG, VectorReader, unzstd

VERSION = 1
MAX_NOTES = 4096
ONE_MESSAGE = 1 << 20  # bytes of payload up to which one message is faster than several
HEAVY = 4 << 20  # bytes of a vector that take some milliseconds to unpack

PARTS: dict[int, Part] = {pb.Part.Value(f"PART_{p.upper()}"): p for p in get_args(Part)}
ENCODINGS: dict[int, str] = {pb.Encoding.Value(f"ENCODING_{e.upper()}"): e for e in PLAIN}
PART_NUMBERS = {part: number for number, part in PARTS.items()}
ENCODING_NUMBERS = {encoding: number for number, encoding in ENCODINGS.items()}


# -- sending ---------------------------------------------------------------------------------------------------


def encode(model: Model, envelope: Envelope, settings: WireSettings) -> Iterator[bytes]:
    """Serialized ModelChunks, made one by one. The part is the one the model's own layout tells."""
    header: pb.Header | None = _header(model.layout, envelope, settings)
    if is_one_message(model.layout, settings) and not settings.zstd:
        data = PLAIN[_encoding(model.layout, settings)].encode(model.vector)
        yield frame(header, data, xxhash.xxh3_64_intdigest(data))
        return
    hasher = xxhash.xxh3_64()
    for data, last in _with_last(_payload(model, settings)):
        hasher.update(data)
        yield frame(header, data, hasher.intdigest() if last else None)
        header = None


def payload_size(layout: Layout, settings: WireSettings) -> int:
    """Bytes of payload; with zstd at most about so many."""
    return PLAIN[_encoding(layout, settings)].size(layout.size)


def is_one_message(layout: Layout, settings: WireSettings) -> bool:
    """Does `encode` give exactly one message?"""
    return payload_size(layout, settings) <= ONE_MESSAGE


def _encoding(layout: Layout, settings: WireSettings) -> str:
    """Never int8 for predictions: in a block that shares its scale with a class's count, what is small is zero."""
    return "fp16" if layout.part == "predictions" and settings.encoding == "int8" else settings.encoding


def _header(layout: Layout, envelope: Envelope, settings: WireSettings) -> pb.Header:
    return pb.Header(
        version=VERSION,
        sender=envelope.sender,
        run=envelope.run,
        round=envelope.round,
        tag=envelope.tag,
        samples=envelope.samples,
        notes=envelope.notes or None,
        encoding=cast(Any, ENCODING_NUMBERS[_encoding(layout, settings)]),
        zstd=settings.zstd > 0,
        layout=layout.digest,
        part=cast(Any, PART_NUMBERS[layout.part]),
        numbers=layout.size,
        encoded_size=0 if settings.zstd else payload_size(layout, settings),
    )


def _payload(model: Model, settings: WireSettings) -> Iterator[memoryview]:
    encoding = _encoding(model.layout, settings)
    if not settings.zstd:
        return _pieces(model, PLAIN[encoding], settings.chunk)
    packed = _compressed(_pieces(model, PACKED[encoding], settings.chunk), model.nbytes, settings.zstd)
    return _regrouped(packed, 2 * ONE_MESSAGE if is_one_message(model.layout, settings) else settings.chunk)


def _pieces(model: Model, coding: Coding, most: int) -> Iterator[memoryview]:
    """The encoded vector in pieces of whole blocks, of at most `most` bytes or one block."""
    step = max(1, most // coding.size(coding.block)) * coding.block
    for start in range(0, model.layout.size, step):
        yield coding.encode(model.vector[start : start + step])


def _compressed(pieces: Iterator[memoryview], size: int, level: int) -> Iterator[bytes]:
    params = zstandard.ZstdCompressionParameters.from_level(level, source_size=size, window_log=ZSTD_WINDOW_LOG)
    packer = zstandard.ZstdCompressor(compression_params=params).compressobj()
    for piece in pieces:
        yield packer.compress(piece)
    yield packer.flush()


def _regrouped(pieces: Iterator[bytes], size: int) -> Iterator[memoryview]:
    """The same bytes in pieces of exactly `size`; the last may be shorter."""
    ready = b""
    for piece in pieces:
        ready += piece
        while len(ready) > size:
            yield memoryview(ready)[:size]
            ready = ready[size:]
    yield memoryview(ready)


def _with_last(pieces: Iterator[memoryview]) -> Iterator[tuple[memoryview, bool]]:
    """Each piece and whether it is the last one; a model without numbers has one empty piece."""
    held = next(pieces, memoryview(b""))
    for piece in pieces:
        yield held, False
        held = piece
    yield held, True


# -- receiving -------------------------------------------------------------------------------------------------


class Decoder:
    """Takes chunks with `feed`, gives an Offer with `finish`; both raise Refused and are of no use after that.

    `admit` is called once, when the header is understood and before the layout is asked for or memory is taken.
    Both may raise Refused: not every node has auxiliary data, so not every node has a layout for predictions.
    """

    def __init__(
        self, layout_of: Callable[[Part], Layout], admit: Callable[[Envelope], None] | None = None
    ) -> None:
        self.envelope: Envelope | None = None
        self.received = 0  # bytes of payload
        self.heavy = False  # one chunk may unpack to very much
        self._layout_of = layout_of
        self._admit = admit
        self._hasher = xxhash.xxh3_64()
        self._closed = False

    def feed(self, message: bytes) -> None:
        chunk = parse(message)
        self.begin(chunk)
        self.take(chunk)

    def begin(self, chunk: Chunk) -> None:
        """The half of `feed` that asks others: it belongs on their thread."""
        if self._closed:
            raise Refused(Reason.GARBAGE, "a chunk after the trailer")
        if self.envelope is None:
            if chunk.header is None:
                raise Refused(Reason.GARBAGE, "the first chunk has no header")
            self._open(chunk.header)
        elif chunk.header is not None:
            raise Refused(Reason.GARBAGE, "a second header")

    def take(self, chunk: Chunk) -> None:
        """The half that works; when `heavy`, it is worth a thread."""
        if chunk.data:
            self._unpack_data(chunk.data)
        if chunk.trailer is not None:
            self._close(chunk.trailer)

    @property
    def complete(self) -> bool:
        """The trailer came: there is nothing more to wait for."""
        return self._closed

    def finish(self) -> Offer:
        if self.envelope is None or not self._closed:
            raise Refused(Reason.TRUNCATED, f"the stream ended after {self.received} bytes, without a trailer")
        e = self.envelope
        return Offer(e.sender, Model(self._layout, self._vector.out), e.round, e.tag, e.samples, e.notes)

    def _open(self, header: pb.Header) -> None:
        self.envelope = envelope = _envelope(header)
        encoding = ENCODINGS.get(header.encoding)
        if encoding is None:
            raise Refused(Reason.GARBAGE, f"encoding {header.encoding} is not known")
        if self._admit is not None:
            self._admit(envelope)
        self._layout = layout = self._layout_of(envelope.part)
        _check_layout(header, layout)
        coding = (PACKED if header.zstd else PLAIN)[encoding]
        self._most = _check_size(header, coding.size(layout.size))
        self.heavy = header.zstd and layout.nbytes > HEAVY
        self._vector = VectorReader(layout.size, coding, Reason.BOMB if header.zstd else Reason.TOO_LARGE)
        self._unpack = unzstd(self._vector) if header.zstd else self._vector.write

    def _unpack_data(self, data: memoryview) -> None:
        self.received += len(data)
        if self.received > self._most:
            raise Refused(Reason.TOO_LARGE, f"more than the {self._most} bytes that the layout allows")
        self._hasher.update(data)
        try:
            self._unpack(data)
        except zstandard.ZstdError as error:
            reason = Reason.BOMB if "memory" in str(error) else Reason.GARBAGE  # a window larger than ours
            raise Refused(reason, f"not a zstd frame of ours: {error}") from error

    def _close(self, trailer: pb.Trailer) -> None:
        self._closed = True
        if self._vector.missing:
            raise Refused(Reason.TRUNCATED, f"{self._vector.missing} of {self._layout.size} numbers are missing")
        if trailer.checksum != self._hasher.intdigest():
            raise Refused(Reason.CHECKSUM, f"the checksum of {self.received} bytes is wrong")


def _envelope(header: pb.Header) -> Envelope:
    if header.version != VERSION:
        raise Refused(Reason.GARBAGE, f"version {header.version} of the format; this node speaks {VERSION}")
    part = PARTS.get(header.part)
    if part is None:
        raise Refused(Reason.GARBAGE, f"part {header.part} is not known")
    if len(header.notes) > MAX_NOTES:
        raise Refused(Reason.TOO_LARGE, f"{len(header.notes)} notes; {MAX_NOTES} are allowed")
    notes = dict(header.notes) if header.notes else {}
    if not all(map(math.isfinite, notes.values())):
        raise Refused(Reason.NOT_FINITE, "a note is NaN or infinite")
    round = header.round if header.HasField("round") else None
    return Envelope(PeerId(header.sender), header.run, round, header.tag, header.samples, notes, part)


def _check_layout(header: pb.Header, layout: Layout) -> None:
    # A peer with more auxiliary samples than mine does not fit me; its numbers are not too many.
    if header.numbers > layout.size and (layout.part != "predictions" or header.layout == layout.digest):
        raise Refused(Reason.TOO_LARGE, f"{header.numbers} numbers; the {layout.part} here: {layout.size}")
    if header.layout != layout.digest or header.numbers != layout.size:
        raise misfit(header.layout, layout)


def misfit(digest: str, layout: Layout) -> Refused:
    """What was brought or asked for has another layout than what is here."""
    layouts = f"{digest[:8]}, here {layout.digest[:8]}"
    if layout.part == "predictions":
        text = f"predictions about other auxiliary samples or classes: {layouts}; all nodes need the same ones"
        return Refused(Reason.LAYOUT, text)
    return Refused(Reason.LAYOUT, f"a {layout.part} of another layout: {layouts}")


def _check_size(header: pb.Header, size: int) -> int:
    """How many bytes may come: zstd adds a little to what it cannot make smaller."""
    most = size + size // 128 + 1024 if header.zstd else size
    if header.encoded_size > most:
        raise Refused(Reason.TOO_LARGE, f"{header.encoded_size} bytes; the layout allows {most}")
    if header.encoded_size and not header.zstd and header.encoded_size < size:
        raise Refused(Reason.TRUNCATED, f"{header.encoded_size} bytes promised; the layout has {size}")
    return header.encoded_size or most
