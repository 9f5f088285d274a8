"""The personal model's file: any safetensors reader opens it, and writing it takes no copy."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from pfl_node.errors import StoreError
from pfl_node.store.model_file import KINDS, read_facts, read_model, save_model


def test_tensors_of_every_type_and_shape_come_back(tmp_path: Path) -> None:
    tensors = {f"t.{kind}": np.arange(6).reshape(2, 3).astype(kind) for kind in KINDS}
    tensors |= {"scalar": np.array(7, np.int64), "empty": np.empty((0, 4), np.float32)}
    tensors["turned"] = np.arange(6, dtype=np.float32).reshape(2, 3).T
    save_model(tmp_path / "m", tensors, task="digits", note='"quoted"\n')
    facts, found = read_model(tmp_path / "m")
    assert facts == {"task": "digits", "note": '"quoted"\n'} == read_facts(tmp_path / "m")
    for tensor, again in ((tensors, found), (tensors, load_file(tmp_path / "m"))):
        assert tensor.keys() == again.keys()
        assert all(np.array_equal(tensor[k], again[k]) and tensor[k].dtype == again[k].dtype for k in tensor)


def test_every_tensor_is_aligned_to_its_type(tmp_path: Path) -> None:
    save_model(tmp_path / "m", {"a": np.zeros(3, np.uint8), "b": np.zeros(5, np.float32), "c": np.zeros(2)})
    raw = (tmp_path / "m").read_bytes()
    assert (8 + int.from_bytes(raw[:8], "little")) % 8 == 0
    with safe_open(tmp_path / "m", framework="numpy") as file:
        assert list(file.offset_keys()) == ["c", "b", "a"]


def test_writing_a_large_model_takes_no_copy_of_it(tmp_path: Path) -> None:
    tensors = {str(n): np.zeros(1 << 20, np.float32) for n in range(4)}
    tracemalloc.start()
    try:
        save_model(tmp_path / "m", tensors)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20  # of 16 MB


def test_a_missing_and_a_damaged_file_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"there is no .*first checkpoint"):
        read_facts(tmp_path / "m")
    (tmp_path / "m").write_bytes(b"nonsense")
    with pytest.raises(StoreError, match="cannot read"):
        read_model(tmp_path / "m")
