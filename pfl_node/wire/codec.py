"""Encodes a model, a part of one or predictions as serialized chunks, and decodes them. Sans-io.

The receiver checks the header before it allocates memory; then each chunk is decoded straight into place.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import repeat
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
from pfl_node.wire.transfer_progress import MessageSize
from pfl_node.wire.vector_reader import ZSTD_WINDOW_LOG, VectorReader, unzstd

VERSION = 1
MAX_NOTES = 4096
ONE_MESSAGE = 1 << 20  # bytes of payload up to which one message is faster than several
SMALL = 1 << 18  # bytes of payload in one message on any line
MAX_CONTENT = 64  # bytes of the name of encoded bytes
HEAVY = 4 << 20  # bytes of a vector that take some milliseconds to decompress

SAME = ("encoding", "zstd", "layout", "part", "numbers", "encoded_size")  # fields of a stream that continues

PARTS: dict[int, Part] = {pb.Part.Value(f"PART_{p.upper()}"): p for p in get_args(Part)}
ENCODINGS: dict[int, str] = {pb.Encoding.Value(f"ENCODING_{e.upper()}"): e for e in PLAIN}
PART_NUMBERS = {part: number for number, part in PARTS.items()}
ENCODING_NUMBERS = {encoding: number for number, encoding in ENCODINGS.items()}


# -- sending ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stream:
    """How a model is sent in several messages."""

    size: MessageSize
    content: bytes = b""  # names the encoded bytes; empty: a stream that breaks off cannot be continued
    offset: int = 0  # bytes that the receiver has


def encode(
    model: Model, envelope: Envelope, settings: WireSettings, stream: Stream | None = None
) -> Iterator[bytes]:
    """Serialized ModelChunks, generated one at a time. The part is that of the model's layout."""
    header: pb.Header | None = _header(model.layout, envelope, settings, stream)
    if stream is None and is_one_message(model.layout, settings) and not settings.zstd:
        data = PLAIN[_encoding(model.layout, settings)].encode(model.vector)
        yield frame(header, data, xxhash.xxh3_64_intdigest(data))
        return
    hasher = xxhash.xxh3_64()
    skip = stream.offset if stream else 0
    for data, last in _with_last(_payload(model, settings, stream)):
        hasher.update(data)
        if skip >= len(data) and not last:
            skip -= len(data)
            continue
        yield frame(header, data[skip:], hasher.intdigest() if last else None)
        header, skip = None, 0


def payload_size(layout: Layout, settings: WireSettings) -> int:
    """Bytes of payload before compression."""
    return PLAIN[_encoding(layout, settings)].size(layout.size)


def is_one_message(layout: Layout, settings: WireSettings) -> bool:
    return payload_size(layout, settings) <= ONE_MESSAGE


def fits_one_message(layout: Layout, settings: WireSettings, rate: float | None) -> bool:
    """Whether to send one message over a line of this rate, or of an unknown one."""
    size = payload_size(layout, settings)
    return size <= SMALL or (size <= ONE_MESSAGE and rate is not None and size < rate)


def _encoding(layout: Layout, settings: WireSettings) -> str:
    """Predictions are never int8: small values that share a block, and so a scale, with class counts become 0."""
    if settings.encoding == "auto":
        return "fp32"  # the line is not known here
    return "fp16" if layout.part == "predictions" and settings.encoding == "int8" else settings.encoding


def _header(layout: Layout, envelope: Envelope, settings: WireSettings, stream: Stream | None) -> pb.Header:
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
        content=stream.content if stream else b"",
        offset=stream.offset if stream else 0,
    )


def _payload(model: Model, settings: WireSettings, stream: Stream | None) -> Iterator[memoryview]:
    encoding = _encoding(model.layout, settings)
    whole = 2 * ONE_MESSAGE if is_one_message(model.layout, settings) else settings.chunk
    if not settings.zstd:
        return _pieces(model, PLAIN[encoding], _sizes(settings.chunk, stream))
    packed = _compressed(_pieces(model, PACKED[encoding], repeat(settings.chunk)), model.nbytes, settings.zstd)
    return _regrouped(packed, _sizes(whole, stream))


def _sizes(most: int, stream: Stream | None) -> Iterator[int]:
    """The size of each message."""
    while True:
        yield stream.size.bytes if stream else most


def _pieces(model: Model, coding: Coding, sizes: Iterator[int]) -> Iterator[memoryview]:
    """The encoded vector in pieces of whole blocks: at least one block, at most as many bytes as `sizes` says."""
    start, block = 0, coding.size(coding.block)
    while start < model.layout.size:
        end = start + max(1, next(sizes) // block) * coding.block
        yield coding.encode(model.vector[start:end])
        start = end


def _compressed(pieces: Iterator[memoryview], size: int, level: int) -> Iterator[bytes]:
    params = zstandard.ZstdCompressionParameters.from_level(level, source_size=size, window_log=ZSTD_WINDOW_LOG)
    packer = zstandard.ZstdCompressor(compression_params=params).compressobj()
    for piece in pieces:
        yield packer.compress(piece)
    yield packer.flush()


def _regrouped(pieces: Iterator[bytes], sizes: Iterator[int]) -> Iterator[memoryview]:
    """The same bytes in pieces of these sizes; the last may be shorter."""
    ready, size = b"", next(sizes)
    for piece in pieces:
        ready += piece
        while len(ready) > size:
            yield memoryview(ready)[:size]
            ready, size = ready[size:], next(sizes)
    yield memoryview(ready)


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
    if header.version != VERSION:
        raise Refused(Reason.GARBAGE, f"format version {header.version}; this node supports {VERSION}")
    part = PARTS.get(header.part)
    if part is None:
        raise Refused(Reason.GARBAGE, f"part {header.part} is not known")
    if header.encoding not in ENCODINGS:
        raise Refused(Reason.GARBAGE, f"encoding {header.encoding} is not known")
    if len(header.notes) > MAX_NOTES:
        raise Refused(Reason.TOO_LARGE, f"{len(header.notes)} notes; {MAX_NOTES} are allowed")
    notes = dict(header.notes) if header.notes else {}
    if not all(map(math.isfinite, notes.values())):
        raise Refused(Reason.NOT_FINITE, "a note is NaN or infinite")
    round = header.round if header.HasField("round") else None
    if len(header.content) > MAX_CONTENT:
        raise Refused(Reason.GARBAGE, f"a content name of {len(header.content)} bytes; {MAX_CONTENT} are allowed")
    return chunk, Envelope(PeerId(header.sender), header.run, round, header.tag, header.samples, notes, part)


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
        coding = (PACKED if header.zstd else PLAIN)[ENCODINGS[header.encoding]]
        self.received = 0  # bytes of payload
        self.heavy = header.zstd and layout.nbytes > HEAVY  # one chunk may take long to decompress
        self.complete = False  # the trailer has arrived
        self._sound = True
        self._header = header
        self._envelope = envelope
        self._layout = layout
        self._hasher = xxhash.xxh3_64()
        self._most = _check_size(header, coding.size(layout.size))
        self._vector = VectorReader(layout.size, coding, Reason.BOMB if header.zstd else Reason.TOO_LARGE)
        self._unpack = unzstd(self._vector) if header.zstd else self._vector.write

    @property
    def content(self) -> bytes:
        """What the sender calls the encoded bytes; empty: the stream cannot be continued."""
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
        return self._layout

    @property
    def nbytes(self) -> int:
        """Bytes of memory when decoding is done."""
        return self._layout.nbytes

    def take(self, chunk: Chunk) -> None:
        if self.complete:
            raise Refused(Reason.GARBAGE, "a chunk after the trailer")
        if chunk.header is not None and chunk.header is not self._header:
            raise Refused(Reason.GARBAGE, "a second header")
        self._sound = False  # unless all goes well
        if chunk.data:
            self._unpack_data(chunk.data)
        if chunk.trailer is not None:
            self._check_trailer(chunk.trailer)
        self._sound = True

    def finish(self) -> Offer:
        if not self.complete:
            raise truncated(self.received)
        e = self._envelope
        return Offer(e.sender, Model(self._layout, self._vector.out), e.round, e.tag, e.samples, e.notes)

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
        if self._vector.missing:
            raise Refused(Reason.TRUNCATED, f"{self._vector.missing} of {self._layout.size} numbers are missing")
        if trailer.checksum != self._hasher.intdigest():
            raise Refused(Reason.CHECKSUM, f"the checksum of {self.received} bytes is wrong")


def truncated(received: int) -> Refused:
    return Refused(Reason.TRUNCATED, f"the stream ended after {received} bytes, without a trailer")


def _check_layout(header: pb.Header, layout: Layout) -> None:
    # A peer with more auxiliary samples than ours has another layout; its message is not too large.
    if header.numbers > layout.size and (layout.part != "predictions" or header.layout == layout.digest):
        raise Refused(Reason.TOO_LARGE, f"{header.numbers} numbers; the {layout.part} here: {layout.size}")
    if header.layout != layout.digest or header.numbers != layout.size:
        raise misfit(header.layout, layout)


def misfit(digest: str, layout: Layout) -> Refused:
    if layout.part == "predictions":
        layouts = f"{digest[:8]}, here {layout.digest[:8]}"
        text = f"predictions about other auxiliary samples or classes: {layouts}; all nodes need the same ones"
        return Refused(Reason.LAYOUT, text)
    return Refused(Reason.LAYOUT, f"this {layout.part} does not fit: {layout.difference(digest)}")


def _check_size(header: pb.Header, size: int) -> int:
    """The largest payload to accept; zstd adds a little to data that it cannot compress."""
    most = size + size // 128 + 1024 if header.zstd else size
    if header.encoded_size > most:
        raise Refused(Reason.TOO_LARGE, f"{header.encoded_size} bytes; the layout allows {most}")
    if header.encoded_size and not header.zstd and header.encoded_size < size:
        raise Refused(Reason.TRUNCATED, f"{header.encoded_size} bytes announced; the layout has {size}")
    return header.encoded_size or most
