"""A policy's state goes to disk and comes back the same; a wrong file says what is wrong."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from pfl_node.errors import StoreError
from pfl_node.model import Entry, Layout, Model
from pfl_node.store.checkpoint import load_checkpoint, save_checkpoint, save_model
from pfl_node.store.state import freeze, thaw

LAYOUT = Layout((Entry("a", (2, 3)),), (Entry("b", (4,)),))


def model(seed: int) -> Model:
    return Model(LAYOUT, np.random.default_rng(seed).normal(size=LAYOUT.size).astype(np.float32))


def state() -> dict[str, Any]:
    rng = random.Random(3)
    whole = model(1)
    return {
        "model": whole,
        "round": 7,
        "rng": rng.getstate(),
        "kept": {"heads": [model(2).head, whole.head], "core": whole.core, "seen": Counter(x=2), "near": None},
    }


def test_a_checkpoint_comes_back_as_it_was(tmp_path: Path) -> None:
    before = state()
    save_checkpoint(tmp_path / "c", before, LAYOUT, policy="Pens")
    after = load_checkpoint(tmp_path / "c", LAYOUT, policy="Pens")
    assert after == before
    assert isinstance(after["kept"]["seen"], Counter)
    restored = random.Random()
    restored.setstate(after["rng"])
    assert restored.random() == random.Random(3).random()


def test_no_checkpoint_is_no_error(tmp_path: Path) -> None:
    assert load_checkpoint(tmp_path / "c", LAYOUT) is None


def test_a_checkpoint_of_another_model_or_policy_says_so(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "c", state(), LAYOUT, policy="Pens")
    with pytest.raises(StoreError, match="another policy"):
        load_checkpoint(tmp_path / "c", LAYOUT, policy="Facade")
    with pytest.raises(StoreError, match="another layout"):
        load_checkpoint(tmp_path / "c", Layout((Entry("z", (1,)),), ()), policy="Pens")


@pytest.mark.parametrize("cut", [0, 5, 60, -3])
def test_a_damaged_checkpoint_is_noticed(tmp_path: Path, cut: int) -> None:
    file = tmp_path / "c"
    save_checkpoint(file, state(), LAYOUT)
    file.write_bytes(file.read_bytes()[:cut])
    with pytest.raises(StoreError, match="damaged"):
        load_checkpoint(file, LAYOUT)


def test_a_failed_write_leaves_the_old_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "c"
    save_checkpoint(file, state(), LAYOUT)
    old = file.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StoreError, match="No space left"):
        save_checkpoint(file, state() | {"round": 8}, LAYOUT)
    assert file.read_bytes() == old
    assert [f.name for f in tmp_path.iterdir()] == ["c"]


def test_what_a_checkpoint_cannot_hold_is_named() -> None:
    with pytest.raises(StoreError, match="a policy keeps a object"):
        freeze({"x": object()})


def test_the_personal_model_opens_with_any_safetensors_reader(tmp_path: Path) -> None:
    save_model(tmp_path / "m", {"w": np.arange(6, dtype=np.float32).reshape(2, 3).T}, task="digits")
    with safe_open(tmp_path / "m", framework="numpy") as file:
        assert file.metadata()["task"] == "digits"
        assert np.array_equal(file.get_tensor("w"), np.arange(6, dtype=np.float32).reshape(2, 3).T)


leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
keys = st.text() | st.integers() | st.tuples(st.integers(), st.text())
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner) | st.dictionaries(keys, inner) | st.tuples(inner, inner) | st.sets(st.integers())
    ),
    max_leaves=20,
)


@given(values)
def test_any_plain_state_survives(value: Any) -> None:
    frozen, vectors = freeze(value)
    assert thaw(frozen, vectors, LAYOUT) == value
