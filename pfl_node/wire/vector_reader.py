"""Encoded bytes, however they are cut, into a vector that is allocated once. Bounded in memory; no I/O."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import zstandard

from pfl_node.errors import Reason, Refused
from pfl_node.model import Vector
from pfl_node.wire.encodings import Coding

ZSTD_WINDOW_LOG = 20  # weights repeat nothing over a long distance, and it bounds the memory of the receiver
ZSTD_STEP = 1 << 17  # bytes unpacked at a time


class VectorReader:
    """Memory is taken once, for the whole vector, or not at all when one chunk holds it as it must be."""

    def __init__(self, numbers: int, coding: Coding, beyond: Reason) -> None:
        self._numbers = numbers
        self._coding = coding
        self._beyond = beyond
        self._out: Vector | None = None
        self._at = 0  # numbers that are in place
        self._left = coding.size(numbers)  # bytes still to come
        self._cut = bytearray()  # the beginning of a block whose end is in a later chunk

    @property
    def out(self) -> Vector:
        if self._out is None:
            self._out = np.empty(self._numbers, np.float32)
        return self._out

    @property
    def missing(self) -> int:
        return self._numbers - self._at

    def write(self, data: memoryview) -> int:
        """Called by zstd's writer too, which wants the length back."""
        given = len(data)
        if given > self._left:
            raise Refused(self._beyond, f"more than the {self._numbers} numbers of the layout")
        if self._out is None and given == self._left:
            self._out = self._coding.view(data)
            if self._out is not None:
                self._check(self._out)
                data = data[given:]
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
        self._check(target)

    def _check(self, placed: Vector) -> None:
        if not np.isfinite(placed).all():
            raise Refused(Reason.NOT_FINITE, f"NaN or infinity among the numbers from {self._at} on")
        self._at += placed.size


def unzstd(sink: VectorReader) -> Callable[[memoryview], object]:
    """Unpacks in small steps into the sink, which stops it by raising."""
    window = 1 << ZSTD_WINDOW_LOG
    writer = zstandard.ZstdDecompressor(max_window_size=window).stream_writer(
        cast(Any, sink), write_size=ZSTD_STEP
    )
    return writer.write
