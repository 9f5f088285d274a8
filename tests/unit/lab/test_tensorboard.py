"""The export for TensorBoard, read back with TensorBoard's own reader."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pfl_node.cli import main
from pfl_node.lab.report.result import reopen
from pfl_node.lab.tensorboard import FILE, events, export

loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")


def values(path: Path) -> list[tuple[str, int, float]]:
    found = loader.RawEventFileLoader(str(path)).Load()
    event = __import__("tensorboard.compat.proto.event_pb2", fromlist=["Event"]).Event
    rows = [event.FromString(data) for data in found]
    assert rows[0].file_version == "brain.Event:2"
    return [(v.tag, row.step, v.simple_value) for row in rows[1:] for v in row.summary.value]


def test_a_file_holds_every_value(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(events([("a/b", 300, 0.5), ("c", 1, 2.0)]))
    assert values(tmp_path / FILE) == [("a/b", 300, 0.5), ("c", 1, 2.0)]


def test_every_cell_becomes_a_run_with_a_curve_for_each_cluster(whole: Path, tmp_path: Path) -> None:
    assert export(reopen(whole), tmp_path) == 6
    tags = [tag for tag, _, _ in values(tmp_path / "facade" / "seed-1" / FILE)]
    assert {"test_accuracy/all", "test_accuracy/majority", "test_loss/minority", "final/fair_accuracy"} <= set(
        tags
    )
    assert tags.count("test_accuracy/minority") == 4


def test_a_second_export_takes_the_place_of_the_first(whole: Path, tmp_path: Path) -> None:
    export(reopen(whole), tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("events*")}
    export(reopen(whole), tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("events*")} == before


def test_the_verb_exports_beside_the_report(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["lab", "report", str(whole), "--tensorboard", str(tmp_path / "logs")]) == 0
    assert "6 runs for TensorBoard" in capsys.readouterr().err
    assert len(list((tmp_path / "logs").rglob(FILE))) == 6


def test_without_tensorboard_the_verb_says_what_to_install(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in ("matplotlib", "tensorboard.summary.writer.record_writer"):
        monkeypatch.setitem(sys.modules, module, None)
    assert main(["lab", "report", str(whole), "--tensorboard", str(tmp_path / "logs")]) == 2
    assert "pip install 'pfl-node[tensorboard]'" in capsys.readouterr().err
