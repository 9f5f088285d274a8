"""Describes which numbers of a partial model a message has, by runs in the header or by an index before the
numbers. Sans-io.

An index is a bitmap with one bit for each number of the layout, or deltas: for each number that is present, the
count of absent ones before it in one byte, where 255 means 255 absent ones and continues in the next byte. The
sender takes the smaller one. The header is checked before memory is allocated, the index before it is used.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pfl_node.errors import Reason, Refused
from pfl_node.model import Indices
from pfl_node.wire import peer_pb2 as pb

MAX_RUNS = 64
FULL = 255  # a byte of deltas that continues in the next one

Bytes = npt.NDArray[np.uint8]


def pack(indices: Indices, size: int, *, same: bool) -> tuple[pb.Coordinates, Bytes]:
    """The field of the header, and the index."""
    count = indices.size
    breaks = np.flatnonzero(np.diff(indices) != 1) + 1
    found = pb.Coordinates(count=count, same=same)
    if breaks.size < MAX_RUNS:
        starts = indices[np.concatenate(([0], breaks))] if count else indices
        lengths = np.diff(np.concatenate(([0], breaks, [count]))) if count else indices
        found.runs.extend(np.stack((starts, lengths), axis=1).ravel().tolist())
        return found, np.empty(0, np.uint8)
    gaps = np.diff(indices, prepend=np.int32(-1)) - 1
    if count + int((gaps // FULL).sum()) < (size + 7) // 8:
        index = _deltas(gaps)
    else:
        bits = np.zeros(size, np.bool_)
        bits[indices] = True
        index, found.bitmap = np.packbits(bits, bitorder="little"), True
    found.index_size = index.size
    return found, index


def _deltas(gaps: npt.NDArray[np.int32]) -> Bytes:
    ends = np.cumsum(gaps // FULL + 1)  # the position after each number's last byte
    out = np.full(int(ends[-1]), FULL, np.uint8)
    out[ends - 1] = gaps % FULL
    return out


def check(given: pb.Coordinates, size: int) -> None:
    """Raises Refused if the field does not fit a layout of this size."""
    if given.count > size:
        raise Refused(Reason.TOO_LARGE, f"{given.count} numbers are present; the layout has {size}")
    if len(given.runs) > 2 * MAX_RUNS:
        raise Refused(Reason.TOO_LARGE, f"{len(given.runs) // 2} runs; {MAX_RUNS} are allowed")
    if not given.index_size:
        _check_runs(given, size)
        return
    most = (size + 7) // 8 if given.bitmap else given.count + size // FULL
    least = most if given.bitmap else max(1, given.count)
    if given.runs or not least <= given.index_size <= most:
        raise Refused(Reason.GARBAGE, f"an index of {given.index_size} bytes for {given.count} of {size} numbers")


def _check_runs(given: pb.Coordinates, size: int) -> None:
    end, count = 0, 0
    if len(given.runs) % 2 or given.bitmap:
        raise Refused(Reason.GARBAGE, "a run without a length, or a bitmap without bytes")
    for start, length in zip(given.runs[::2], given.runs[1::2], strict=True):
        if start < end or not 0 < length <= size - start:
            raise Refused(Reason.GARBAGE, f"a run of {length} numbers from {start} on, after {end} of {size}")
        end, count = start + length, count + length
    if count != given.count:
        raise Refused(Reason.GARBAGE, f"runs of {count} numbers; {given.count} are announced")


def unpack(given: pb.Coordinates, index: bytes, size: int) -> Indices:
    """The indices of checked coordinates, strictly ascending. Raises Refused."""
    if not given.index_size:
        runs = zip(given.runs[::2], given.runs[1::2], strict=True)
        parts = [np.arange(start, start + length, dtype=np.int32) for start, length in runs]
        return np.concatenate(parts) if parts else np.empty(0, np.int32)
    raw = np.frombuffer(index, np.uint8)
    found = np.flatnonzero(np.unpackbits(raw, bitorder="little")) if given.bitmap else _places(raw)
    if found.size != given.count or (found.size and found[-1] >= size):
        raise Refused(Reason.GARBAGE, f"an index of {found.size} places; {given.count} are announced")
    return found.astype(np.int32)


def counts_below(given: pb.Coordinates, bounds: Sequence[int]) -> list[int]:
    """How many of the numbers in the runs of checked coordinates are below each bound."""
    starts, lengths = np.array(given.runs, np.int64).reshape(-1, 2).T
    found = np.clip(np.array(bounds, np.int64)[:, None] - starts, 0, lengths).sum(axis=1)
    return [int(count) for count in found]


def _places(raw: Bytes) -> npt.NDArray[np.int64]:
    ends = raw != FULL
    if not ends[-1]:
        raise Refused(Reason.GARBAGE, "an index that ends in the middle of a number")
    places: npt.NDArray[np.int64] = np.cumsum(raw.astype(np.int64) + ends)[ends] - 1
    return places
