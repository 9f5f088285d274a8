"""Encodes float32 vectors as fp32, fp16 or int8 with a scale per block; as byte planes for zstd. Pure numpy.

An encoding works on blocks, and whole blocks (the last may be short) can be decoded independently. If blocks have
scales, the stretches of a layout are encoded one by one: weights of 0.05 that share a scale with a running
variance of 100 would become 0.

Errors: fp32 none; fp16 half a unit of the 11-bit mantissa, and values beyond 65504 are clipped; int8 at most
max|block| / 254, and a block with all values below 1e-35 becomes zero. NaN and infinity stay non-finite.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Protocol

import numpy as np
import numpy.typing as npt

from pfl_node.model import Vector

INT8_BLOCK = 1024
PLANE_BLOCK = 16384
SCALE = 4  # bytes

_FP16_MAX = np.float32(65504)
_MAX_SCALE = np.nextafter(np.finfo(np.float32).max / np.float32(127), np.float32(0))  # 127 times this is finite
_TINY = np.float32(1e-35)


class Coding(Protocol):
    block: int  # numbers
    scaled: bool  # whether a block has a scale

    def size(self, numbers: int) -> int:
        """The number of encoded bytes of this many numbers from the start of a block."""

    def encode(self, numbers: Vector) -> memoryview:
        """`numbers` are whole blocks, except for the last of the vector."""

    def decode(self, data: memoryview, out: Vector) -> None:
        """`data` is exactly `size(out.size)` bytes."""

    def view(self, data: memoryview) -> Vector | None:
        """The decoded numbers without a copy; None if the encoding needs one."""


class Plain:
    block = 1
    scaled = False

    def __init__(self, dtype: str) -> None:
        self.dtype = np.dtype(dtype)

    def size(self, numbers: int) -> int:
        return numbers * self.dtype.itemsize

    def encode(self, numbers: Vector) -> memoryview:
        return _narrow(numbers, self.dtype).data.cast("B")

    def decode(self, data: memoryview, out: Vector) -> None:
        raw = np.frombuffer(data, np.uint8)
        if self.dtype == np.float32:
            out.view(np.uint8)[:] = raw  # a byte copy; reading unaligned numbers is slow
        else:
            out[:] = raw.copy().view(self.dtype)

    def view(self, data: memoryview) -> Vector | None:
        if self.dtype != np.float32:
            return None
        numbers = np.frombuffer(data, np.float32)
        return numbers if numbers.flags.aligned else None


class Planes:
    """Each block as all first bytes, then all second bytes, and so on: adjacent exponents compress better."""

    block = PLANE_BLOCK
    scaled = False

    def __init__(self, dtype: str) -> None:
        self.dtype = np.dtype(dtype)

    def size(self, numbers: int) -> int:
        return numbers * self.dtype.itemsize

    def encode(self, numbers: Vector) -> memoryview:
        raw = _narrow(numbers, self.dtype).view(np.uint8).reshape(-1, self.dtype.itemsize)
        return np.concatenate([raw[i : i + self.block].T.ravel() for i in range(0, len(raw), self.block)]).data

    def decode(self, data: memoryview, out: Vector) -> None:
        raw = np.frombuffer(data, np.uint8)
        width = self.dtype.itemsize
        for start in range(0, out.size, self.block):
            part = out[start : start + self.block]
            planes = raw[start * width : (start + part.size) * width].reshape(width, part.size)
            part[:] = np.ascontiguousarray(planes.T).view(self.dtype)[:, 0]

    def view(self, data: memoryview) -> Vector | None:  # noqa: ARG002
        return None


class Int8:
    """Blocks of a float32 scale and one signed byte per number."""

    block = INT8_BLOCK
    scaled = True

    def size(self, numbers: int) -> int:
        return numbers + SCALE * -(-numbers // self.block)

    def encode(self, numbers: Vector) -> memoryview:
        out = np.empty(self.size(numbers.size), np.uint8)
        for width, part, record in self._runs(numbers.size):
            _quantise(numbers[part].reshape(-1, width), out[record].reshape(-1, 4 + width))
        return out.data

    def decode(self, data: memoryview, out: Vector) -> None:
        raw = np.frombuffer(data, np.uint8)
        for width, part, record in self._runs(out.size):
            records = raw[record].reshape(-1, 4 + width)
            scales = np.ascontiguousarray(records[:, :4]).view("<f4")
            with np.errstate(over="ignore", invalid="ignore"):  # the caller checks for non-finite numbers
                np.multiply(records[:, 4:].view(np.int8), scales, out=out[part].reshape(-1, width))

    def view(self, data: memoryview) -> Vector | None:  # noqa: ARG002
        return None

    def _runs(self, numbers: int) -> Iterator[tuple[int, slice, slice]]:
        """Width, numbers and bytes of the whole blocks, then of the short one."""
        whole = numbers - numbers % self.block
        if whole:
            yield self.block, slice(0, whole), slice(0, self.size(whole))
        if numbers > whole:
            yield numbers - whole, slice(whole, numbers), slice(self.size(whole), self.size(numbers))


def stretches(coding: Coding, ends: Sequence[int]) -> list[slice]:
    """What is encoded on its own of a vector whose stretches end at these places."""
    found = ends if coding.scaled else ends[-1:]
    return [slice(start, end) for start, end in pairwise((0, *found)) if end > start]


def size_of(coding: Coding, ends: Sequence[int]) -> int:
    """The number of encoded bytes of this vector."""
    return sum(coding.size(part.stop - part.start) for part in stretches(coding, ends))


def _narrow(numbers: Vector, dtype: np.dtype[np.generic]) -> npt.NDArray[np.generic]:
    """Convert to the dtype of the wire; finite numbers stay finite."""
    if dtype.itemsize == 4:
        return np.ascontiguousarray(numbers, dtype)
    with np.errstate(over="ignore"):
        half = numbers.astype(dtype)
    lost = np.isinf(half) & np.isfinite(numbers)
    if lost.any():
        half[lost] = np.copysign(_FP16_MAX, numbers[lost])
    return half


def _quantise(rows: npt.NDArray[np.float32], records: npt.NDArray[np.uint8]) -> None:
    """Write a scale and bytes for each row. A row with a non-finite number gets a non-finite scale."""
    peaks = np.abs(rows).max(axis=1, keepdims=True)
    scales = np.where(peaks < _TINY, np.float32(0), peaks / np.float32(127))
    scales = np.where(np.isfinite(scales), np.minimum(scales, _MAX_SCALE), scales).astype("<f4")
    with np.errstate(divide="ignore", invalid="ignore"):
        steps = np.rint(rows / scales)
    np.nan_to_num(steps, copy=False)
    records[:, :4] = scales.view(np.uint8)
    records[:, 4:] = np.clip(steps, -127, 127).astype(np.int8).view(np.uint8)


PLAIN: dict[str, Coding] = {"fp32": Plain("<f4"), "fp16": Plain("<f2"), "int8": Int8()}
PACKED: dict[str, Coding] = {"fp32": Planes("<f4"), "fp16": Planes("<f2"), "int8": Int8()}  # before zstd
