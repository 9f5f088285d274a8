"""The committed stubs say what the protos say."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pfl_node.wire.generate import HERE, NAMES, ROOT, SUFFIXES, generate, main, stale

pytest.importorskip("grpc_tools")


def test_the_committed_stubs_are_not_stale() -> None:
    assert main(["--check"]) == 0


def test_a_changed_proto_makes_them_stale(tmp_path: Path) -> None:
    (tmp_path / "proto").mkdir()
    for name in NAMES:
        text = (ROOT / "proto" / f"{name}.proto").read_text()
        (tmp_path / "proto" / f"{name}.proto").write_text(text.replace("uint32 tag = 5;", "uint32 label = 5;"))
    assert stale(generate(tmp_path, tmp_path)) == ["peer_pb2.py", "peer_pb2.pyi"]


def test_another_release_of_the_tools_does_not(tmp_path: Path) -> None:
    stubs = generate(ROOT, tmp_path)
    for name in stubs:
        text = (HERE / name).read_text()
        text = text.replace("Protobuf Python Version: 7.", "Protobuf Python Version: 8.").replace(
            "    7,\n", "    8,\n"
        )
        (tmp_path / name).write_text(text.replace("GRPC_GENERATED_VERSION = '1.", "GRPC_GENERATED_VERSION = '2."))
    assert stale(stubs, tmp_path) == []


def test_a_missing_stub_is_stale(tmp_path: Path) -> None:
    for name in NAMES:
        for suffix in SUFFIXES:
            shutil.copy(HERE / f"{name}{suffix}", tmp_path)
    (tmp_path / "peer_pb2.pyi").unlink()
    stubs = generate(ROOT, tmp_path)
    assert stale(stubs, tmp_path) == ["peer_pb2.pyi"]
