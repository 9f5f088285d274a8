"""Encodes a model, a part of one or predictions, and the vectors beside it, as serialized chunks, and decodes
them. Sans-io.

The receiver checks the header before it allocates memory; then each chunk is decoded straight into place.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import repeat
from typing import Any, cast, get_args

import xxhash
import zstandard

from pfl_node.errors import LayoutMismatch, Reason, Refused
from pfl_node.model import Layout, Model
from pfl_node.settings import WireSettings
from pfl_node.types import MAX_VECTOR_NAME, MAX_VECTORS, Envelope, Offer, Part, PeerId
from pfl_node.wire import peer_pb2 as pb
from pfl_node.wire.coordinates import check as check_coordinates
from pfl_node.wire.encodings import PACKED, PLAIN, Coding
from pfl_node.wire.framing import SPARE, Chunk, frame, parse
from pfl_node.wire.payload import Payload, Stream
from pfl_node.wire.vector_reader import IndexReader, PayloadReader, VectorReader, unzstd

# Of the format; older nodes refuse the second one, which has vectors or partial models, and the third, in which a
# buffer begins a new block of int8.
VERSION, STRUCTURED, STRETCHES = 1, 2, 3
MAX_NOTES = 4096
MAX_CONTENT = 64  # bytes of a content name
HEAVY = 4 << 20  # bytes of a vector that take some milliseconds to decompress
HEAVY_INDEX = 1 << 17  # bytes of an index, such as a bitmap of a million numbers, that take as long to unpack

# Fields of a stream that continues.
SAME = ("encoding", "zstd", "layout", "part", "numbers", "encoded_size", "vectors", "present")

PARTS: dict[int, Part] = {pb.Part.Value(f"PART_{p.upper()}"): p for p in get_args(Part)}
ENCODINGS: dict[int, str] = {pb.Encoding.Value(f"ENCODING_{e.upper()}"): e for e in PLAIN}
PART_NUMBERS = {part: number for number, part in PARTS.items()}
ENCODING_NUMBERS = {encoding: number for number, encoding in ENCODINGS.items()}


# -- sending ---------------------------------------------------------------------------------------------------


def encode(
    what: Model | Payload,
    envelope: Envelope,
    settings: WireSettings,
    stream: Stream | None = None,
    vectors: Mapping[str, Model] | None = None,
) -> Iterator[bytes]:
    """Serialized ModelChunks of a payload, or of a model and vectors, generated one at a time. The part is that of
    the model's layout."""
    payload = what if isinstance(what, Payload) else Payload(what, vectors or {})
    header: pb.Header | None = _header(payload, envelope, settings, stream)
    hasher = xxhash.xxh3_64()
    skip = stream.offset if stream else 0
    for data, last in _with_last(payload.pieces(settings, stream)):
        hasher.update(data)
        if skip >= len(data) and not last:
            skip -= len(data)
            continue
        yield frame(header, data[skip:], hasher.intdigest() if last else None)
        header, skip = None, 0


def _header(payload: Payload, envelope: Envelope, settings: WireSettings, stream: Stream | None) -> pb.Header:
    layout, encoding = payload.model.layout, payload.encoding(settings)
    version = STRUCTURED if payload.vectors or payload.present else VERSION
    if in_stretches(PLAIN[encoding], [m.layout for m in payload.models]):
        version = STRETCHES
    return pb.Header(
        version=version,
        sender=envelope.sender,
        run=envelope.run,
        round=envelope.round,
        tag=envelope.tag,
        samples=envelope.samples,
        notes=envelope.notes or None,
        encoding=cast(Any, ENCODING_NUMBERS[encoding]),
        zstd=settings.zstd > 0,
        layout=layout.digest,
        part=cast(Any, PART_NUMBERS[layout.part]),
        numbers=layout.size,
        encoded_size=0 if settings.zstd else payload.size(settings),
        content=stream.content if stream else b"",
        offset=stream.offset if stream else 0,
        vectors=[_vector(name, vector.layout) for name, vector in payload.vectors.items()],
        present=payload.present,
    )


def _vector(name: str, layout: Layout) -> pb.Vector:
    part: Any = PART_NUMBERS[layout.part]
    return pb.Vector(name=name, part=part, layout=layout.digest, numbers=layout.size)


def in_stretches(coding: Coding, layouts: Iterable[Layout]) -> bool:
    """Whether a vector of one of these layouts is encoded in several stretches."""
    return coding.scaled and any(len(layout.bounds) > 1 for layout in layouts)


def _with_last(pieces: Iterator[memoryview]) -> Iterator[tuple[memoryview, bool]]:
    """Each piece and whether it is the last; a model without numbers has one empty piece."""
    held = next(pieces, memoryview(b""))
    for piece in pieces:
        yield held, False
        held = piece
    yield held, True


# -- receiving -------------------------------------------------------------------------------------------------


def read_header(message: bytes) -> tuple[Chunk, Envelope]:
    """Parse the first message of a stream and check its header. Raises Refused."""
    chunk = parse(message)
    header = chunk.header
    if header is None:
        raise Refused(Reason.GARBAGE, "the first chunk has no header")
    if not header.version:
        raise Refused(Reason.GARBAGE, "the header has no format version")
    if header.version not in (VERSION, STRUCTURED, STRETCHES):
        text = f"message format {header.version}; this node supports {VERSION} to {STRETCHES}"
        raise Refused(Reason.VERSION, text)
    part = PARTS.get(header.part)
    if part is None:
        raise Refused(Reason.GARBAGE, f"part {header.part} is unknown")
    if header.encoding not in ENCODINGS:
        raise Refused(Reason.GARBAGE, f"encoding {header.encoding} is unknown")
    if len(header.notes) > MAX_NOTES:
        raise Refused(Reason.TOO_LARGE, f"{len(header.notes)} notes; {MAX_NOTES} are allowed")
    notes = dict(header.notes) if header.notes else {}
    if not all(map(math.isfinite, notes.values())):
        raise Refused(Reason.NOT_FINITE, "a note is NaN or infinite")
    round = header.round if header.HasField("round") else None
    if len(header.content) > MAX_CONTENT:
        raise Refused(Reason.GARBAGE, f"a content name of {len(header.content)} bytes; {MAX_CONTENT} are allowed")
    if header.version < STRUCTURED and (header.vectors or header.HasField("present")):
        raise Refused(Reason.GARBAGE, f"vectors or coordinates in a message of format version {header.version}")
    vectors = _read_vectors(header) if header.vectors else {}
    present = header.present.count if header.HasField("present") else None
    who = PeerId(header.sender), header.run
    return chunk, Envelope(*who, round, header.tag, header.samples, notes, part, vectors, present)


def _read_vectors(header: pb.Header) -> dict[str, Part]:
    """The names and parts of the vectors beside the model. Raises Refused."""
    if len(header.vectors) > MAX_VECTORS:
        raise Refused(Reason.TOO_LARGE, f"{len(header.vectors)} vectors; {MAX_VECTORS} are allowed")
    found: dict[str, Part] = {}
    for vector in header.vectors:
        part = PARTS.get(vector.part)
        if part is None:
            raise Refused(Reason.GARBAGE, f"part {vector.part} of a vector is unknown")
        if not 0 < len(vector.name) <= MAX_VECTOR_NAME or vector.name in found:
            raise Refused(Reason.GARBAGE, f"{vector.name[:MAX_VECTOR_NAME]!r} is not a valid name of a vector")
        found[vector.name] = part
    return found


def decode(messages: Iterable[bytes], layout: Layout) -> Offer:
    """The offer in the messages of one stream; `layout` is that of the whole model or of the part."""
    stream = iter(messages)
    if (first := next(stream, None)) is None:
        raise truncated(0)
    chunk, envelope = read_header(first)
    decoder = Decoder(chunk, envelope, layout.of(envelope.part) if layout.part == "model" else layout)
    decoder.take(chunk)
    for message in stream:
        decoder.take(parse(message))
    return decoder.finish()


class Decoder:
    """Decodes the chunks of one stream, including the first, which the constructor takes for its header only.

    Every method raises Refused; a decoder that has raised cannot be used again.
    """

    def __init__(self, first: Chunk, envelope: Envelope, layout: Layout) -> None:
        header = first.header
        assert header is not None
        _check_layout(header, layout)
        if header.offset:
            raise Refused(Reason.TRUNCATED, f"the first {header.offset} bytes are not here; send them again")
        layouts = [layout, *(_layout_of(vector, layout) for vector in header.vectors)]
        coding = (PACKED if header.zstd else PLAIN)[ENCODINGS[header.encoding]]
        if header.version < STRETCHES and in_stretches(coding, layouts):
            text = f"int8 of a model with buffers in message format {header.version}; this node needs {STRETCHES}"
            raise Refused(Reason.VERSION, text)
        self.received = 0  # bytes of payload
        self._index = _index_reader(header, layout)
        numbers = [header.present.count if self._index else layout.size, *(one.size for one in layouts[1:])]
        self.nbytes = 4 * sum(numbers) + (4 * numbers[0] if self._index else 0)  # of memory when decoding is done
        unpacks = header.present.index_size > HEAVY_INDEX
        self.heavy = unpacks or (header.zstd and self.nbytes > HEAVY)  # one chunk may take long to decode
        self.complete = False  # the trailer has arrived
        self._sound = True
        self._header = header
        self._envelope = envelope
        self._layouts = layouts
        self._hasher = xxhash.xxh3_64()
        beyond = Reason.BOMB if header.zstd else Reason.TOO_LARGE
        views = header.present.index_size <= SPARE  # else a few numbers could keep a large index in memory
        indices = [self._index, *repeat(None, len(layouts) - 1)]
        self._vectors = [
            VectorReader(one, coding, beyond, index, views=views)
            for one, index in zip(layouts, indices, strict=True)
        ]
        self._most = _check_size(header, [vector.limits for vector in self._vectors])
        self._payload = PayloadReader([self._index, *self._vectors] if self._index else self._vectors)
        self._unpack = unzstd(self._payload) if header.zstd else self._payload.write

    @property
    def content(self) -> bytes:
        """The sender's name for the encoded bytes; empty: the stream cannot be continued."""
        return self._header.content

    @property
    def resumable(self) -> bool:
        return bool(self.content) and self._sound and not self.complete

    def resume(self, first: Chunk, envelope: Envelope) -> None:
        """Continue with a new stream that begins where the last one broke off; `first` is its first chunk."""
        header, old = first.header, self._header
        assert header is not None
        if self.complete or header.content != old.content or header.offset != self.received:
            raise Refused(Reason.TRUNCATED, f"{self.received} bytes are here, not {header.offset}; ask again")
        if any(getattr(header, name) != getattr(old, name) for name in SAME):
            raise Refused(Reason.GARBAGE, "another model continues under the same name")
        self._header, self._envelope = header, envelope

    @property
    def layout(self) -> Layout:
        return self._layouts[0]

    def take(self, chunk: Chunk) -> None:
        if self.complete:
            raise Refused(Reason.GARBAGE, "a chunk after the trailer")
        if chunk.header is not None and chunk.header is not self._header:
            raise Refused(Reason.GARBAGE, "a second header")
        self._sound = False  # set again if this chunk is decoded without an error
        if chunk.data:
            self._unpack_data(chunk.data)
        if chunk.trailer is not None:
            self._check_trailer(chunk.trailer)
        self._sound = True

    def finish(self) -> Offer:
        if not self.complete:
            raise truncated(self.received)
        e = self._envelope
        numbers, *more = (read.out for read in self._vectors)
        whole, *layouts = self._layouts
        vectors = {name: Model(one, v) for name, one, v in zip(e.vectors, layouts, more, strict=True)}
        model = self._index.partial(whole, numbers) if self._index else Model(whole, numbers)
        return Offer(e.sender, model, e.round, e.tag, e.samples, e.notes, vectors)

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

    def _check_trailer(self, trailer: pb.Trailer) -> None:
        self.complete = True
        if self._payload.missing:
            raise Refused(Reason.TRUNCATED, f"{self._payload.missing} numbers are missing")
        if trailer.checksum != self._hasher.intdigest():
            raise Refused(Reason.CHECKSUM, f"the checksum of {self.received} bytes is wrong")


def truncated(received: int) -> Refused:
    return Refused(Reason.TRUNCATED, f"the stream ended after {received} bytes, without a trailer")


def _check_layout(header: pb.Header, layout: Layout) -> None:
    if header.layout != layout.digest:  # of another task, also if it is larger: not the sender's fault
        raise misfit(header.layout, layout)
    if header.numbers > layout.size:
        raise Refused(Reason.TOO_LARGE, f"{header.numbers} numbers; the {layout.part} here: {layout.size}")
    if header.numbers != layout.size:
        raise misfit(header.layout, layout)


def _index_reader(header: pb.Header, layout: Layout) -> IndexReader | None:
    """None: the model is complete."""
    if not header.HasField("present"):
        return None
    if layout.part == "predictions":
        raise Refused(Reason.GARBAGE, "predictions that are partial")
    check_coordinates(header.present, layout.size)
    return IndexReader(header.present, layout.size)


def _layout_of(vector: pb.Vector, layout: Layout) -> Layout:
    """The layout of a vector beside a model of this layout: the whole model's, or that of a part."""
    try:
        own = (layout.whole or layout).of(PARTS[vector.part])
    except LayoutMismatch as error:
        raise Refused(Reason.LAYOUT, f"the vector {vector.name}: {error}") from error
    if vector.layout != own.digest or vector.numbers != own.size:
        raise Refused(Reason.LAYOUT, f"the vector {vector.name} does not fit: {own.difference(vector.layout)}")
    return own


def misfit(digest: str, layout: Layout) -> Refused:
    if layout.part == "predictions":
        layouts = f"{digest[:8]}, here {layout.digest[:8]}"
        text = f"predictions about other auxiliary samples or classes: {layouts}; all nodes need the same ones"
        return Refused(Reason.LAYOUT, text)
    return Refused(Reason.LAYOUT, f"this {layout.part} does not fit: {layout.difference(digest)}")


def _check_size(header: pb.Header, limits: Iterable[tuple[int, int]]) -> int:
    """The largest payload to accept; zstd adds a little to data that it cannot compress."""
    least, most = (header.present.index_size + sum(sizes) for sizes in zip(*limits, strict=True))
    most = most + most // 128 + 1024 if header.zstd else most
    if header.encoded_size > most:
        raise Refused(Reason.TOO_LARGE, f"{header.encoded_size} bytes; the layout allows {most}")
    if header.encoded_size and not header.zstd and header.encoded_size < least:
        raise Refused(Reason.TRUNCATED, f"{header.encoded_size} bytes announced; the layout has {least}")
    return header.encoded_size or most
