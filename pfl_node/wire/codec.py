"""A model to serialized chunks and back. Sans-io: bytes in, bytes out; knows no grpc and no asyncio.

Everything the header says is checked before memory is taken; then each chunk goes straight to its place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast, get_args

import numpy as np
import xxhash
import zstandard

from pfl_node.errors import Reason, Refused
from pfl_node.model import Layout, Model
from pfl_node.settings import WireSettings
from pfl_node.types import Offer, Part, PeerId
from pfl_node.wire import peer_pb2 as pb
from pfl_node.wire.framing import Chunk, frame, parse
from pfl_node.wire.numbers import PACKED, PLAIN, Coding

VERSION = 1
MAX_NOTES = 4096
ONE_MESSAGE = 1 << 20  # bytes of payload up to which one message is faster than several
ZSTD_WINDOW_LOG = 20  # weights repeat nothing over a long distance; it bounds the memory of the receiver

PARTS: dict[int, Part] = {pb.Part.Value(f"PART_{p.upper()}"): p for p in get_args(Part)}
ENCODINGS: dict[int, str] = {pb.Encoding.Value(f"ENCODING_{e.upper()}"): e for e in PLAIN}
PART_NUMBERS = {part: number for number, part in PARTS.items()}
ENCODING_NUMBERS = {encoding: number for number, encoding in ENCODINGS.items()}


@dataclass(frozen=True, slots=True)
class Envelope:
    """What is said about a model besides its numbers."""

    sender: PeerId
    run: str
    round: int | None = None
    tag: int = 0
    samples: int = 0
    notes: Mapping[str, float] = field(default_factory=dict)
    part: Part = "model"


# -- sending ---------------------------------------------------------------------------------------------------


def encode(model: Model, envelope: Envelope, settings: WireSettings) -> Iterator[bytes]:
    """Serialized ModelChunks, made one by one. The part is the one the model's own layout tells."""
    hasher = xxhash.xxh3_64()
    header: pb.Header | None = _header(model.layout, envelope, settings)
    for data, last in _with_last(_payload(model, settings)):
        hasher.update(data)
        yield frame(header, data, pb.Trailer(checksum=hasher.intdigest()) if last else None)
        header = None


def payload_size(layout: Layout, settings: WireSettings) -> int:
    """Bytes of payload; with zstd at most about so many."""
    return PLAIN[settings.encoding].size(layout.size)


def _header(layout: Layout, envelope: Envelope, settings: WireSettings) -> pb.Header:
    return pb.Header(
        version=VERSION,
        sender=envelope.sender,
        run=envelope.run,
        round=envelope.round,
        tag=envelope.tag,
        samples=envelope.samples,
        notes=envelope.notes,
        encoding=cast(Any, ENCODING_NUMBERS[settings.encoding]),
        zstd=settings.zstd > 0,
        layout=layout.digest,
        part=cast(Any, PART_NUMBERS[layout.part]),
        numbers=layout.size,
        encoded_size=0 if settings.zstd else payload_size(layout, settings),
    )


def _payload(model: Model, settings: WireSettings) -> Iterator[memoryview]:
    if settings.zstd:
        return _compressed(model, settings)
    coding = PLAIN[settings.encoding]
    size = coding.size(model.layout.size)
    return _pieces(model, coding, max(size, 1) if size <= ONE_MESSAGE else settings.chunk)


def _pieces(model: Model, coding: Coding, chunk: int) -> Iterator[memoryview]:
    """The encoded vector in pieces of whole blocks, at most `chunk` bytes each."""
    step = max(1, chunk // coding.size(coding.block)) * coding.block
    if chunk >= coding.size(model.layout.size):
        step = max(1, model.layout.size)
    for start in range(0, model.layout.size, step):
        yield coding.encode(model.vector[start : start + step])


def _compressed(model: Model, settings: WireSettings) -> Iterator[memoryview]:
    params = zstandard.ZstdCompressionParameters.from_level(
        settings.zstd, source_size=model.nbytes, window_log=ZSTD_WINDOW_LOG
    )
    packer = zstandard.ZstdCompressor(compression_params=params).compressobj()
    ready = bytearray()
    for piece in _pieces(model, PACKED[settings.encoding], settings.chunk):
        ready += packer.compress(piece)
        while len(ready) >= settings.chunk:
            yield memoryview(bytes(ready[: settings.chunk]))
            del ready[: settings.chunk]
    ready += packer.flush()
    for start in range(0, len(ready), settings.chunk):
        yield memoryview(ready)[start : start + settings.chunk]


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
    """

    def __init__(
        self, layout_of: Callable[[Part], Layout], admit: Callable[[Envelope], None] | None = None
    ) -> None:
        self.envelope: Envelope | None = None
        self.received = 0  # bytes of payload
        self.zstd = False  # then `feed` may take long enough to be worth a thread
        self._layout_of = layout_of
        self._admit = admit
        self._hasher = xxhash.xxh3_64()
        self._closed = False

    def feed(self, message: bytes | Chunk) -> None:
        header, data, trailer = parse(message) if isinstance(message, bytes) else message
        if self._closed:
            raise Refused(Reason.GARBAGE, "a chunk after the trailer")
        if self.envelope is None:
            if header is None:
                raise Refused(Reason.GARBAGE, "the first chunk has no header")
            self._open(header)
        elif header is not None:
            raise Refused(Reason.GARBAGE, "a second header")
        if data:
            self._take(data)
        if trailer is not None:
            self._close(trailer)

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
        self.zstd = header.zstd
        self._vector = Filler(layout.size, coding, Reason.BOMB if header.zstd else Reason.TOO_LARGE)
        self._unpack = _unzstd(self._vector) if header.zstd else self._vector.write

    def _take(self, data: memoryview) -> None:
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


class Filler:
    """Puts encoded bytes, however they are cut, into a vector that is allocated once."""

    def __init__(self, numbers: int, coding: Coding, beyond: Reason) -> None:
        self.out = np.empty(numbers, np.float32)
        self._coding = coding
        self._beyond = beyond
        self._at = 0  # numbers that are in place
        self._left = coding.size(numbers)  # bytes still to come
        self._cut = bytearray()  # the beginning of a block whose end is in a later chunk

    @property
    def missing(self) -> int:
        return self.out.size - self._at

    def write(self, data: memoryview) -> int:
        """Called by zstd's writer too, which wants the length back."""
        given = len(data)
        if given > self._left:
            raise Refused(self._beyond, f"more than the {self.out.size} numbers of the layout")
        self._left -= given
        while data:
            block = min(self._coding.block, self.missing)
            size = self._coding.size(block)
            if self._cut or len(data) < size:
                data = self._patch(data, block, size)
            else:
                blocks = len(data) // size
                self._place(data[: blocks * size], blocks * block)
                data = data[blocks * size :]
        return given

    def _patch(self, data: memoryview, block: int, size: int) -> memoryview:
        lacking = size - len(self._cut)
        self._cut += data[:lacking]
        if len(self._cut) == size:
            self._place(memoryview(bytes(self._cut)), block)
            self._cut.clear()
        return data[lacking:]

    def _place(self, data: memoryview, numbers: int) -> None:
        target = self.out[self._at : self._at + numbers]
        self._coding.decode(data, target)
        if not np.isfinite(target).all():
            raise Refused(Reason.NOT_FINITE, f"NaN or infinity among the numbers from {self._at} on")
        self._at += numbers


def _unzstd(sink: Filler) -> Callable[[memoryview], object]:
    """Unpacks in small steps into the sink, which stops it by raising."""
    window = 1 << ZSTD_WINDOW_LOG
    writer = zstandard.ZstdDecompressor(max_window_size=window).stream_writer(cast(Any, sink), write_size=1 << 17)
    return writer.write


def _envelope(header: pb.Header) -> Envelope:
    if header.version != VERSION:
        raise Refused(Reason.GARBAGE, f"version {header.version} of the format; this node speaks {VERSION}")
    part = PARTS.get(header.part)
    if part is None:
        raise Refused(Reason.GARBAGE, f"part {header.part} is not known")
    if len(header.notes) > MAX_NOTES:
        raise Refused(Reason.TOO_LARGE, f"{len(header.notes)} notes; {MAX_NOTES} are allowed")
    notes = dict(header.notes)
    if not all(map(math.isfinite, notes.values())):
        raise Refused(Reason.NOT_FINITE, "a note is NaN or infinite")
    round = header.round if header.HasField("round") else None
    return Envelope(PeerId(header.sender), header.run, round, header.tag, header.samples, notes, part)


def _check_layout(header: pb.Header, layout: Layout) -> None:
    if header.numbers > layout.size:
        raise Refused(Reason.TOO_LARGE, f"{header.numbers} numbers; the {layout.part} here has {layout.size}")
    if header.layout != layout.digest or header.numbers != layout.size:
        raise Refused(
            Reason.LAYOUT, f"a {layout.part} of another layout: {header.layout[:8]}, here {layout.digest[:8]}"
        )


def _check_size(header: pb.Header, size: int) -> int:
    """How many bytes may come: zstd adds a little to what it cannot make smaller."""
    most = size + size // 128 + 1024 if header.zstd else size
    if header.encoded_size > most:
        raise Refused(Reason.TOO_LARGE, f"{header.encoded_size} bytes; the layout allows {most}")
    if header.encoded_size and not header.zstd and header.encoded_size < size:
        raise Refused(Reason.TRUNCATED, f"{header.encoded_size} bytes promised; the layout has {size}")
    return header.encoded_size or most
