"""Decodes chunks of any size into a vector that is allocated once. Sans-io, bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, cast

import numpy as np
import zstandard

from pfl_node.errors import Reason, Refused
from pfl_node.model import Indices, Layout, PartialModel, Vector
from pfl_node.wire import peer_pb2 as pb
from pfl_node.wire.coordinates import counts_below, unpack
from pfl_node.wire.encodings import SCALE, Coding, size_of, stretches

ZSTD_WINDOW_LOG = 20  # limits the receiver's memory; weights have no long-distance repetitions to exploit
ZSTD_STEP = 1 << 17  # bytes decompressed at a time


class VectorReader:
    """If one chunk contains the whole vector in its final form, the vector is a view of the chunk. A view keeps
    the chunk in memory: without `views`, the vector is copied. `index`: of a partial model; it is read first."""

    def __init__(
        self,
        layout: Layout,
        coding: Coding,
        beyond: Reason,
        index: IndexReader | None = None,
        *,
        views: bool = True,
    ) -> None:
        self._layout = layout
        self._numbers = index.count if index else layout.size
        self._coding = coding
        self._beyond = beyond
        self._index = index
        self._views = views
        self._out: Vector | None = None
        self._at = 0  # decoded numbers
        self._partial = bytearray()  # the beginning of a block that ends in a later chunk

    @property
    def out(self) -> Vector:
        if self._out is None:
            self._out = np.empty(self._numbers, np.float32)
        return self._out

    @property
    def missing(self) -> int:
        return self._numbers - self._at

    @property
    def limits(self) -> tuple[int, int]:
        """The least and the most bytes. An index that has not arrived says in which stretches the numbers are."""
        if self._index is None or not self._index.left:
            return self.left, self.left
        least = self._coding.size(self._numbers)
        return least, least + SCALE * len(self._layout.bounds) * self._coding.scaled

    @property
    def _ends(self) -> Sequence[int]:
        """Where the stretches of the layout end among the numbers that arrive."""
        return self._index.ends(self._layout) if self._index else self._layout.bounds

    @cached_property
    def _stretches(self) -> list[int]:
        """Where those end that are not complete; the first comes last."""
        return [part.stop for part in reversed(stretches(self._coding, self._ends))]

    @cached_property
    def left(self) -> int:
        """Bytes that are still expected."""
        return size_of(self._coding, self._ends)

    def write(self, data: memoryview) -> int:
        """Also the sink of zstd's stream writer, hence the returned length."""
        given = len(data)
        if given > self.left:
            raise Refused(self._beyond, f"more than the {self._numbers} numbers of the layout")
        if self._views and self._out is None and not self._partial and given == self.left:
            self._out = self._coding.view(data)
            if self._out is not None:
                self._check(self._out)
                data = data[given:]
        self.left -= given
        while data:
            here = self._stretches[-1] - self._at
            block = min(self._coding.block, here)
            size = self._coding.size(block)
            if self._partial or len(data) < size:
                data = self._complete_block(data, block, size)
            else:
                blocks = min(len(data) // size, here // block)
                self._decode(data[: blocks * size], blocks * block)
                data = data[blocks * size :]
            if self._at == self._stretches[-1]:
                self._stretches.pop()
        return given

    def _complete_block(self, data: memoryview, block: int, size: int) -> memoryview:
        lacking = size - len(self._partial)
        self._partial += data[:lacking]
        if len(self._partial) == size:
            self._decode(memoryview(bytes(self._partial)), block)
            self._partial.clear()
        return data[lacking:]

    def _decode(self, data: memoryview, numbers: int) -> None:
        target = self.out[self._at : self._at + numbers]
        self._coding.decode(data, target)
        self._check(target)

    def _check(self, placed: Vector) -> None:
        if not np.isfinite(placed).all():
            raise Refused(Reason.NOT_FINITE, f"NaN or infinity among the numbers from {self._at} on")
        self._at += placed.size


class IndexReader:
    """Reads the index of a partial model, and checks it as soon as it is complete. Runs become indices only at the
    end: a header alone must not allocate memory."""

    def __init__(self, present: pb.Coordinates, size: int) -> None:
        self._present = present
        self._size = size
        self._index = bytearray()
        self._places: Indices | None = None

    @property
    def count(self) -> int:
        """The numbers that are present."""
        return self._present.count

    @property
    def left(self) -> int:
        return self._present.index_size - len(self._index)

    @property
    def missing(self) -> int:
        return self.left

    def ends(self, layout: Layout) -> Sequence[int]:
        """Where the stretches of the layout end among the numbers that are present; of an index, once it is
        complete."""
        if self._places is None:
            return counts_below(self._present, layout.bounds)
        return [int(end) for end in np.searchsorted(self._places, np.array(layout.bounds, np.int32))]

    def write(self, data: memoryview) -> int:
        self._index += data
        if data and not self.left:
            self._places = unpack(self._present, bytes(self._index), self._size)
        return len(data)

    def partial(self, layout: Layout, numbers: Vector) -> PartialModel:
        places = unpack(self._present, b"", self._size) if self._places is None else self._places
        return PartialModel(layout, places, numbers, same=self._present.same)


class PayloadReader:
    """Reads the parts of a payload, one after the other."""

    def __init__(self, readers: Sequence[IndexReader | VectorReader]) -> None:
        self.readers = readers
        self._at = 0  # index of the reader whose numbers arrive

    @property
    def missing(self) -> int:
        return sum(reader.missing for reader in self.readers)

    def write(self, data: memoryview) -> int:
        given = len(data)
        while self._at < len(self.readers) - 1 and len(data) >= (left := self.readers[self._at].left):
            self.readers[self._at].write(data[:left])
            data = data[left:]
            self._at += 1
        self.readers[self._at].write(data)
        return given


def unzstd(sink: PayloadReader) -> Callable[[memoryview], object]:
    """Decompress in small steps into the sink, which raises to stop a bomb."""
    window = 1 << ZSTD_WINDOW_LOG
    writer = zstandard.ZstdDecompressor(max_window_size=window).stream_writer(
        cast(Any, sink), write_size=ZSTD_STEP
    )
    return writer.write
