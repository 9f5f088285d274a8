"""TensorBoard's files. The bytes of one are spelled out: TensorBoard 2.21 was seen to read them."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from pfl_node.cli import main
from pfl_node.lab.report.result import reopen
from pfl_node.lab.tensorboard import FILE, crc32c, events, export, masked


def records(data: bytes) -> Iterator[bytes]:
    """A second reader of the framing, with its checksums."""
    while data:
        length, check = struct.unpack("<QI", data[:12])
        assert check == masked(data[:8])
        body = data[12 : 12 + length]
        (after,) = struct.unpack("<I", data[12 + length : 16 + length])
        assert after == masked(body)
        yield body
        data = data[16 + length :]


@pytest.mark.parametrize(
    ("data", "crc"),
    [(b"", 0), (b"123456789", 0xE3069283), (bytes(32), 0x8A9136AA), (b"\xff" * 32, 0x62A8AB43)],
)
def test_the_checksum_is_castagnolis(data: bytes, crc: int) -> None:
    """RFC 3720, appendix B.4."""
    assert crc32c(data) == crc


def test_a_file_is_its_version_and_then_a_record_for_each_value() -> None:
    time = b"\x09" + bytes(8)
    first, second = records(events(iter([("a/b", 300, 0.5)])))
    assert first == time + b"\x1a\x0dbrain.Event:2"
    value = b"\x0a\x03a/b" + b"\x15" + struct.pack("<f", 0.5)
    summary = b"\x0a" + bytes([len(value)]) + value
    assert second == time + b"\x10\xac\x02" + b"\x2a" + bytes([len(summary)]) + summary


def test_every_cell_becomes_a_run_with_a_curve_for_each_cluster(whole: Path, tmp_path: Path) -> None:
    assert export(reopen(whole), tmp_path) == 6
    found = (tmp_path / "facade" / "seed-1" / FILE).read_bytes()
    tags = [b"test_accuracy/all", b"test_accuracy/majority", b"test_loss/minority", b"final/fair_accuracy"]
    bodies = list(records(found))
    assert all(any(tag in body for body in bodies) for tag in tags)
    assert sum(b"test_accuracy/minority" in body for body in bodies) == 4


def test_a_second_export_takes_the_place_of_the_first(whole: Path, tmp_path: Path) -> None:
    export(reopen(whole), tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("events*")}
    export(reopen(whole), tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("events*")} == before


def test_the_verb_exports_beside_the_report(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    assert main(["lab", "report", str(whole), "--tensorboard", str(tmp_path / "logs")]) == 0
    assert "6 runs for TensorBoard" in capsys.readouterr().err
    assert len(list((tmp_path / "logs").rglob(FILE))) == 6
