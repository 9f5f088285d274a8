"""Two generations of a checkpoint: what is kept, what is gone on from, and what an operator is told."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from stat import S_ISDIR
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from pfl_node.errors import StoreError, Unusable
from pfl_node.store.checkpoints import Checkpoints
from pfl_node.store.model_file import save_model
from pfl_node.store.policy_state import freeze
from tests.arm_failpoints import failing
from tests.toy import LAYOUT, constant


def at(folder: Path) -> Checkpoints:
    return Checkpoints(folder / "checkpoint.safetensors")


def save(folder: Path, round: int, **facts: str) -> Path:
    return at(folder).save({"model": constant(round), "round": round}, LAYOUT, metadata=None, **facts)


def load(folder: Path, **facts: str) -> int | None:
    found = at(folder).load(LAYOUT, **facts)
    if found is None:
        return None
    assert found.state["model"] == constant(found.state["round"])
    return int(found.state["round"])


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def number(n: int) -> str:
    return f"checkpoint-{n:06}.safetensors"


def test_the_newest_and_the_one_before_are_kept(tmp_path: Path) -> None:
    assert load(tmp_path) is None
    for round in range(4):
        save(tmp_path, round)
        assert load(tmp_path) == round
    assert names(tmp_path) == [number(3), number(4)]


def test_the_hundred_thousandth_is_newer_than_the_one_before(tmp_path: Path) -> None:
    save(tmp_path, 0).rename(tmp_path / number(999_999))
    save(tmp_path, 1)
    assert load(tmp_path) == 1
    assert names(tmp_path) == [number(1_000_000), number(999_999)]


def test_what_a_crash_left_half_written_is_cleared_away_and_the_model_is_not(tmp_path: Path) -> None:
    (tmp_path / f".{number(1)}.tmp").write_bytes(b"half")
    (tmp_path / ".checkpoint.safetensors.tmp").write_bytes(b"half")
    (tmp_path / ".model.safetensors.tmp").write_bytes(b"in the making")
    save(tmp_path, 0)
    assert names(tmp_path) == [".model.safetensors.tmp", number(1)]


def test_the_single_checkpoint_of_old_is_gone_on_from_and_is_the_one_before(tmp_path: Path) -> None:
    frozen, vectors = freeze({"model": constant(5), "round": 5})
    facts = {"format": "pfl-node checkpoint 1", "layout": LAYOUT.digest, "policy": "Pens"}
    save_model(tmp_path / "checkpoint.safetensors", vectors, state=json.dumps(frozen), **facts)
    assert load(tmp_path, policy="Pens") == 5
    save(tmp_path, 6, policy="Pens")
    assert names(tmp_path) == [number(1), "checkpoint.safetensors"]
    (tmp_path / number(1)).write_bytes(b"")
    assert load(tmp_path, policy="Pens") == 5
    for round in (6, 7):
        save(tmp_path, round, policy="Pens")
    assert names(tmp_path) == [number(1), f"{number(1)}.damaged", number(2)]


def flip(data: bytes) -> bytes:
    return data[:-3] + bytes([data[-3] ^ 4]) + data[-2:]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda data: data[: len(data) // 2],
    "flipped": flip,
    "empty": lambda _: b"",
    "zeros": lambda data: bytes(len(data)),
    "foreign": lambda _: b"#!/bin/sh\necho not a checkpoint\n",
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_one_is_put_aside_and_the_other_is_used_with_a_warning(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    save(tmp_path, 0)
    newest = save(tmp_path, 1)
    damaged = damage(newest.read_bytes())
    newest.write_bytes(damaged)
    with capture_logs() as logs:
        assert load(tmp_path) == 0
    [warning] = logs
    assert warning["log_level"] == "warning"
    assert warning["event"] == f"checkpoint {number(2)} is unusable, continuing from an older one"
    assert (warning["used"], warning["round"]) == (number(1), 0)
    assert Path(warning["kept_as"]).read_bytes() == damaged
    for round in (1, 2, 3):
        save(tmp_path, round)
    assert names(tmp_path) == [f"{number(2)}.damaged", number(3), number(4)]
    assert load(tmp_path) == 3


def test_the_older_one_may_be_damaged_unnoticed_and_is_pruned(tmp_path: Path) -> None:
    save(tmp_path, 0).write_bytes(b"")
    save(tmp_path, 1)
    with capture_logs() as logs:
        assert load(tmp_path) == 1
    assert logs == []


def test_one_that_is_damaged_again_gets_another_name(tmp_path: Path) -> None:
    save(tmp_path, 0)
    for data in (b"first", b"second"):
        save(tmp_path, 1).write_bytes(data)
        assert load(tmp_path) == 0
    aside = [tmp_path / f"{number(2)}.damaged", tmp_path / f"{number(2)}.damaged-2"]
    assert [file.read_bytes() for file in aside] == [b"first", b"second"]


def test_one_of_another_layout_or_run_is_put_aside_when_the_other_fits(tmp_path: Path) -> None:
    save(tmp_path, 0, run="mine")
    save(tmp_path, 1, run="theirs")
    with capture_logs() as logs:
        assert load(tmp_path, run="mine") == 0
    assert logs[0]["why"] == "of another run ('theirs', now 'mine')"
    assert names(tmp_path) == [number(1), f"{number(2)}.foreign"]


def test_when_all_are_of_another_run_nothing_is_moved_and_the_line_says_what_to_do(tmp_path: Path) -> None:
    save(tmp_path, 0, run="theirs")
    save(tmp_path, 1, run="theirs")
    with pytest.raises(Unusable, match=r"000002\S+ is of another run .*use another --data-dir or move"):
        load(tmp_path, run="mine")
    assert names(tmp_path) == [number(1), number(2)]


def test_when_all_are_damaged_that_is_an_error_and_no_new_beginning(tmp_path: Path) -> None:
    save(tmp_path, 0).write_bytes(b"")
    save(tmp_path, 1).write_bytes(b"")
    with pytest.raises(StoreError, match="restore one from a backup, or move them away to start again") as caught:
        load(tmp_path)
    line = str(caught.value)
    assert number(1) in line
    assert number(2) in line
    assert "\n" not in line
    assert names(tmp_path) == [number(1), number(2)]


def test_the_only_one_is_damaged(tmp_path: Path) -> None:
    save(tmp_path, 0).write_bytes(b"")
    with pytest.raises(StoreError, match="restore it from a backup, or move it away to start again at round 0"):
        load(tmp_path)


def test_where_nothing_can_be_put_aside_the_other_is_used_all_the_same(tmp_path: Path) -> None:
    save(tmp_path, 0)
    save(tmp_path, 1).write_bytes(b"")
    with failing("checkpoint.aside=error(EROFS)"), capture_logs() as logs:
        assert load(tmp_path) == 0
    assert logs[0]["event"] == "cannot rename an unusable checkpoint"
    assert logs[1]["kept_as"] == str(tmp_path / number(2))


def test_an_old_one_that_cannot_be_removed_is_no_failure_of_the_new(tmp_path: Path) -> None:
    save(tmp_path, 0)
    save(tmp_path, 1)
    with failing("checkpoint.prune=error(EIO)"), capture_logs() as logs:
        save(tmp_path, 2)
    assert [entry["event"] for entry in logs] == ["cannot remove an old checkpoint"]
    assert load(tmp_path) == 2
    save(tmp_path, 3)
    assert names(tmp_path) == [number(3), number(4)]


def test_those_that_are_not_sure_do_not_pile_up(tmp_path: Path) -> None:
    save(tmp_path, 0)
    save(tmp_path, 1)
    for round in (2, 3):
        with failing("checkpoint.sync=error(EIO)"), pytest.raises(StoreError, match="Input/output error"):
            save(tmp_path, round)
        assert names(tmp_path) == [number(1), number(2)]
    save(tmp_path, 4)
    assert load(tmp_path) == 4


@pytest.mark.parametrize("kind", ["EINVAL", "EBADF"])
def test_a_file_system_that_syncs_no_directories_keeps_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    sync = os.fsync

    def fsync(handle: int) -> None:
        if S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(getattr(errno, kind), kind)
        sync(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    for round in range(3):
        save(tmp_path, round)
    assert names(tmp_path) == [number(2), number(3)]


def test_what_else_lies_in_the_directory_is_left_alone(tmp_path: Path) -> None:
    others = ["checkpoint-backup.safetensors", "checkpoint-000001.safetensors.damaged", "checkpoint-1.txt"]
    for name in others:
        (tmp_path / name).write_bytes(b"mine")
    for round in range(3):
        save(tmp_path, round)
    assert load(tmp_path) == 2
    assert names(tmp_path) == sorted([*others, number(2), number(3)])


def test_it_tells_who_wrote_it(tmp_path: Path) -> None:
    state: dict[str, Any] = {"model": constant(1), "round": 1}
    at(tmp_path).save(state, LAYOUT, metadata={"node": "n", "incarnation": "4"}, run="r")
    found = at(tmp_path).load(LAYOUT, run="r")
    assert found
    assert (found.facts["node"], found.facts["incarnation"]) == ("n", "4")
    assert np.array_equal(found.state["model"].vector, constant(1).vector)
