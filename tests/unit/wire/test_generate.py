"""The committed stubs match the protos."""

from __future__ import annotations

from pathlib import Path

import pytest

from pfl_node.wire.generate import PACKAGES, ROOT, generate, main, stale

pytest.importorskip("grpc_tools")


def write(stubs: dict[str, str], root: Path) -> None:
    for name, text in stubs.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_the_committed_stubs_are_not_stale() -> None:
    assert main(["--check"]) == 0


def test_a_changed_proto_makes_them_stale(tmp_path: Path) -> None:
    (tmp_path / "proto").mkdir()
    for name in PACKAGES:
        text = (ROOT / "proto" / f"{name}.proto").read_text()
        (tmp_path / "proto" / f"{name}.proto").write_text(text.replace("uint32 tag = 5;", "uint32 label = 5;"))
    assert stale(generate(tmp_path, tmp_path)) == ["pfl_node/wire/peer_pb2.py", "pfl_node/wire/peer_pb2.pyi"]


def test_another_release_of_the_tools_does_not_make_them_stale(tmp_path: Path) -> None:
    stubs = generate(ROOT, tmp_path)
    other = {}
    for name in stubs:
        text = (ROOT / name).read_text()
        text = text.replace("Protobuf Python Version: 7.", "Protobuf Python Version: 8.")
        text = text.replace("    7,\n", "    8,\n")
        other[name] = text.replace("GRPC_GENERATED_VERSION = '1.", "GRPC_GENERATED_VERSION = '2.")
    write(other, tmp_path)
    assert stale(stubs, tmp_path) == []


def test_a_missing_stub_is_stale(tmp_path: Path) -> None:
    stubs = generate(ROOT, tmp_path)
    write(stubs, tmp_path)
    (tmp_path / "pfl_node/wire/peer_pb2.pyi").unlink()
    assert stale(stubs, tmp_path) == ["pfl_node/wire/peer_pb2.pyi"]
