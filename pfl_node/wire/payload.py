"""The payload of a message: the index of a partial model, the numbers of the model, then those of its named
vectors, each encoded on its own. With zstd, all of it is one frame. Sans-io."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, repeat

import numpy as np
import zstandard

from pfl_node.model import Model, PartialModel, Vector
from pfl_node.settings import WireSettings
from pfl_node.wire import peer_pb2 as pb
from pfl_node.wire.coordinates import Bytes, pack
from pfl_node.wire.encodings import PACKED, PLAIN, Coding, size_of, stretches
from pfl_node.wire.transfer_progress import MessageSize
from pfl_node.wire.vector_reader import ZSTD_WINDOW_LOG

ONE_MESSAGE = 1 << 20  # bytes of payload up to which one message is faster than several
SMALL = 1 << 18  # bytes of payload that are sent in one message on any link


@dataclass(frozen=True, slots=True)
class Stream:
    """How a payload is sent in several messages."""

    size: MessageSize
    content: bytes = b""  # names the encoded bytes; empty: a stream that breaks off cannot be continued
    offset: int = 0  # bytes that the receiver already has


@dataclass(frozen=True)
class Payload:
    model: Model
    vectors: Mapping[str, Model] = field(default_factory=dict)

    @cached_property
    def _packed(self) -> tuple[pb.Coordinates, Bytes] | None:
        """The coordinates of a partial model."""
        model = self.model
        if not isinstance(model, PartialModel):
            return None
        return pack(model.indices, model.layout.size, same=model.same)

    @property
    def models(self) -> tuple[Model, ...]:
        return (self.model, *self.vectors.values())

    def same(self, other: Payload) -> bool:
        """Whether all vectors are the same objects."""
        mine, theirs = self.models, other.models
        same = len(mine) == len(theirs) and all(a is b for a, b in zip(mine, theirs, strict=True))
        return same and self.vectors.keys() == other.vectors.keys()

    @property
    def nbytes(self) -> int:
        """In memory."""
        return sum(m.nbytes for m in self.models)

    @property
    def present(self) -> pb.Coordinates | None:
        """The indices of a partial model's numbers; None: all."""
        return self._packed[0] if self._packed else None

    @property
    def _index(self) -> list[memoryview]:
        return [self._packed[1].data] if self._packed and self._packed[1].size else []

    def encoding(self, settings: WireSettings) -> str:
        """Predictions are never int8: small values that share a block, and so a scale, with class counts become
        0."""
        if settings.encoding == "auto":
            return "fp32"  # the link is not known here
        predictions = self.model.layout.part == "predictions"
        return "fp16" if predictions and settings.encoding == "int8" else settings.encoding

    def size(self, settings: WireSettings) -> int:
        """Bytes before compression."""
        coding = PLAIN[self.encoding(settings)]
        return sum(map(len, self._index)) + sum(size_of(coding, ends_in(m)) for m in self.models)

    def is_one_message(self, settings: WireSettings) -> bool:
        return self.size(settings) <= ONE_MESSAGE

    def fits_one_message(self, settings: WireSettings, rate: float | None) -> bool:
        """Whether to send one message over a link of this rate; None: unknown."""
        size = self.size(settings)
        return size <= SMALL or (size <= ONE_MESSAGE and rate is not None and size < rate)

    def pieces(self, settings: WireSettings, stream: Stream | None) -> Iterator[memoryview]:
        """The encoded bytes, in pieces for one message each."""
        encoding, one = self.encoding(settings), self.is_one_message(settings)
        plain, most = PLAIN[encoding], repeat(settings.chunk)
        vectors = [m.numbers[part] for m in self.models for part in stretches(plain, ends_in(m))]
        if settings.zstd:
            encoded = _encoded(vectors, PACKED[encoding], most)
            packed = _compressed(chain(self._index, encoded), self.nbytes, settings.zstd)
            return _regrouped(packed, _sizes(2 * ONE_MESSAGE if one else settings.chunk, stream))
        if stream is None and one:
            return _joined([*self._index, *map(plain.encode, vectors)])
        sizes = _sizes(settings.chunk, stream)
        if len(vectors) > len(self.models):  # many are short
            return _regrouped(chain(self._index, _encoded(vectors, plain, most)), sizes)
        return chain(_cut(self._index, sizes), _encoded(vectors, plain, sizes))


def ends_in(model: Model) -> Sequence[int]:
    """Where the stretches of the layout end among the numbers that are known."""
    bounds = model.layout.bounds
    if not isinstance(model, PartialModel):
        return bounds
    return [int(end) for end in np.searchsorted(model.indices, np.array(bounds, np.int32))]


def _sizes(most: int, stream: Stream | None) -> Iterator[int]:
    """The size of each message."""
    while True:
        yield stream.size.bytes if stream else most


def _joined(pieces: list[memoryview]) -> Iterator[memoryview]:
    yield pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))


def _cut(pieces: list[memoryview], sizes: Iterator[int]) -> Iterator[memoryview]:
    for piece in pieces:
        while piece:
            size = next(sizes)
            yield piece[:size]
            piece = piece[size:]


def _encoded(vectors: Sequence[Vector], coding: Coding, sizes: Iterator[int]) -> Iterator[memoryview]:
    """The encoded vectors in pieces of whole blocks: at least one block, at most as many bytes as `sizes` says."""
    block = coding.size(coding.block)
    for numbers in vectors:
        start = 0
        while start < numbers.size:
            end = start + max(1, next(sizes) // block) * coding.block
            yield coding.encode(numbers[start:end])
            start = end


def _compressed(pieces: Iterator[memoryview], size: int, level: int) -> Iterator[bytes]:
    params = zstandard.ZstdCompressionParameters.from_level(level, source_size=size, window_log=ZSTD_WINDOW_LOG)
    packer = zstandard.ZstdCompressor(compression_params=params).compressobj()
    for piece in pieces:
        yield packer.compress(piece)
    yield packer.flush()


def _regrouped(pieces: Iterator[bytes] | Iterator[memoryview], sizes: Iterator[int]) -> Iterator[memoryview]:
    """The same bytes in pieces of these sizes; the last may be shorter."""
    ready, size = b"", next(sizes)
    for piece in pieces:
        ready += piece
        while len(ready) > size:
            yield memoryview(ready)[:size]
            ready, size = ready[size:], next(sizes)
    yield memoryview(ready)
