"""The curves of a result as TensorBoard's event files, written by hand: a record is a length, a message and two
checksums, and a scalar is a message of three fields. So nothing has to be installed to write them, and torch is
not loaded."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from pfl_node.errors import StoreError
from pfl_node.lab.experiment import Cell, Experiment
from pfl_node.lab.measures import MEASURES, Found, mean_series, to_paper
from pfl_node.lab.report.phrases import file_name
from pfl_node.lab.report.result import Result
from pfl_node.store.atomic import write_atomic

FILE = "events.out.tfevents.0.pfl-node"  # always the same: a second export takes the place of the first
CURVES = ("test_accuracy", "test_loss", "val_accuracy", "val_loss", "bytes_sent")
Scalar = tuple[str, int, float]  # tag, round, value


def export(record: Result, place: Path) -> int:
    """A TensorBoard run for every cell that is done, in the same folders as in the result; how many."""
    for cell, found in record.results.found.items():
        run = place / cell.folder
        try:
            run.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"cannot make {run}: {error.strerror or error}") from error
        write_atomic(run / FILE, events(scalars(record.experiment, cell, found)))
    return len(record.results.found)


def scalars(experiment: Experiment, cell: Cell, found: Found) -> Iterator[Scalar]:
    """Means over all nodes and over each cluster, by rounds that are done; and the measures at the end."""
    groups: list[tuple[str, int | None]] = [("all", None)]
    if len(found.sizes) > 1:
        groups += [(file_name(experiment.clusters.get(c, f"cluster {c}")), c) for c in sorted(found.sizes)]
    for what in CURVES:
        for name, cluster in groups:
            yield from ((f"{what}/{name}", r + 1, v) for r, v in mean_series(found, what, cluster).items())
    for metric in experiment.metrics:
        value = MEASURES[metric].of(found)
        if value is not None:
            yield f"final/{metric}", cell.settings.rounds or 0, to_paper(metric, value)


def events(found: Iterator[Scalar]) -> bytes:
    """A whole file. Its times are all 0, as a result has none: the same result gives the same bytes."""
    rows = [_bytes(3, b"brain.Event:2")]
    rows += [_varint(2, step) + _bytes(5, _bytes(1, _summary(tag, value))) for tag, step, value in found]
    return b"".join(_record(_double(1, 0.0) + row) for row in rows)


def _summary(tag: str, value: float) -> bytes:
    return _bytes(1, tag.encode()) + bytes([2 << 3 | 5]) + struct.pack("<f", value)


# -- protobuf and TFRecord -------------------------------------------------------------------------------------


def _double(field: int, value: float) -> bytes:
    return bytes([field << 3 | 1]) + struct.pack("<d", value)


def _bytes(field: int, value: bytes) -> bytes:
    return bytes([field << 3 | 2]) + _number(len(value)) + value


def _varint(field: int, value: int) -> bytes:
    return bytes([field << 3]) + _number(value)


def _number(value: int) -> bytes:
    """Seven bits a byte, the lowest first."""
    held = bytearray()
    while value > 0x7F:
        held.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*held, value])


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked(length)) + data + struct.pack("<I", masked(data))


def masked(data: bytes) -> int:
    """A checksum of a text that may itself hold checksums."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    """Castagnoli's, which zlib does not have."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def _entry(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    return byte


TABLE = tuple(map(_entry, range(256)))
