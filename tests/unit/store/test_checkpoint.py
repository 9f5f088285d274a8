"""A policy's state goes to disk and comes back the same; a wrong file says what is wrong."""

from __future__ import annotations

import errno
import json
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from pfl_node.errors import StoreError, Unusable
from pfl_node.model import Entry, Layout, Model
from pfl_node.store.checkpoint import load_checkpoint, save_checkpoint
from pfl_node.store.model_file import save_model
from pfl_node.store.policy_state import freeze, thaw
from tests.arm_failpoints import failing

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


SMALL = {"model": model(1), "round": 7, "kept": {"seen": Counter(x=2), "says": '"checksum":"0123"'}}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a checkpoint."""
    file = tmp_path_factory.mktemp("whole") / "c"
    save_checkpoint(file, SMALL, LAYOUT, metadata={"node": "n"}, policy="Pens")
    assert load_checkpoint(file, LAYOUT, policy="Pens") == SMALL
    return file.read_bytes()


def refused_as_damaged(folder: Path, data: bytes) -> bool:
    (folder / "c").write_bytes(data)
    with pytest.raises(Unusable, match="is damaged") as caught:
        load_checkpoint(folder / "c", LAYOUT, policy="Pens")
    return caught.value.damaged


def test_a_changed_bit_of_any_byte_is_noticed(tmp_path: Path, whole: bytes) -> None:
    for place in range(len(whole)):
        data = bytearray(whole)
        data[place] ^= 1 << place % 8
        assert refused_as_damaged(tmp_path, bytes(data))


def test_a_checkpoint_cut_off_anywhere_is_noticed(tmp_path: Path, whole: bytes) -> None:
    for size in range(len(whole)):
        assert refused_as_damaged(tmp_path, whole[:size])


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
def test_any_damage_is_noticed(tmp_path: Path, whole: bytes, data: st.DataObject) -> None:
    """A stretch of any length, nothing included, is replaced by any other."""
    begin = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(begin, min(begin + 64, len(whole))))
    other = data.draw(st.binary(max_size=64).filter(lambda other: other != whole[begin:end]))
    damaged = whole[:begin] + other + whole[end:]
    if damaged != whole:
        assert refused_as_damaged(tmp_path, damaged)


@given(st.binary(max_size=400))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_was_never_a_checkpoint_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "c").write_bytes(data)
    with pytest.raises(Unusable):
        load_checkpoint(tmp_path / "c", LAYOUT)


def test_somebody_elses_safetensors_are_of_another_format(tmp_path: Path) -> None:
    save_model(tmp_path / "c", {"w": np.zeros(3, np.float32)}, format="pt")
    with pytest.raises(Unusable, match=r"another format \('pt'") as caught:
        load_checkpoint(tmp_path / "c", LAYOUT)
    assert not caught.value.damaged


def test_a_checkpoint_from_before_there_were_checksums_is_read(tmp_path: Path) -> None:
    frozen, vectors = freeze(SMALL)
    facts = {"format": "pfl-node checkpoint 1", "layout": LAYOUT.digest, "policy": "Pens"}
    save_model(tmp_path / "c", vectors, state=json.dumps(frozen), **facts)
    assert load_checkpoint(tmp_path / "c", LAYOUT, policy="Pens") == SMALL


def test_a_checkpoint_whose_checksum_was_taken_out_is_not_taken_for_an_old_one(
    tmp_path: Path, whole: bytes
) -> None:
    assert refused_as_damaged(tmp_path, whole.replace(b'"checksum":"', b'"checksun":"', 1))


@pytest.mark.parametrize(("name", "todo"), [("EACCES", "check its permissions"), ("EMFILE", "fix that")])
def test_a_checkpoint_that_may_not_be_read_is_no_damage(tmp_path: Path, name: str, todo: str) -> None:
    save_checkpoint(tmp_path / "c", SMALL, LAYOUT)
    with failing(f"checkpoint.read=error({name})"), pytest.raises(StoreError, match=todo) as caught:
        load_checkpoint(tmp_path / "c", LAYOUT)
    assert not isinstance(caught.value, Unusable)


@pytest.mark.parametrize("step", ["create", "write", "fsync", "rename"])
@pytest.mark.parametrize("problem", ["ENOSPC", "EROFS", "EIO"])
def test_a_failed_write_leaves_the_old_checkpoint(tmp_path: Path, step: str, problem: str) -> None:
    file = tmp_path / "c"
    save_checkpoint(file, state(), LAYOUT)
    old = file.read_bytes()
    text = os.strerror(getattr(errno, problem))
    with failing(f"checkpoint.{step}=error({problem})"), pytest.raises(StoreError, match=f"cannot write .*{text}"):
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
