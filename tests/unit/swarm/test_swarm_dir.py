"""Where a swarm writes, and what it leaves there."""

from __future__ import annotations

from pathlib import Path

import pytest

from pfl_node.errors import ConfigError
from pfl_node.swarm.messages import directory


def learn(folder: Path, node: str = "node-000") -> None:
    (folder / "nodes" / node).mkdir(parents=True)
    (folder / "nodes" / node / "journal.jsonl").write_text("{}\n")


def test_without_a_wish_nothing_is_left() -> None:
    with directory(None) as folder:
        learn(folder)
    assert not folder.exists()


def test_nothing_is_left_after_an_error_either() -> None:
    with pytest.raises(ZeroDivisionError), directory(None) as folder:
        raise ZeroDivisionError
    assert not folder.exists()


def test_what_was_learnt_stays_where_the_user_wants_it(tmp_path: Path) -> None:
    with directory(tmp_path / "a" / "b") as folder:
        learn(folder)
    assert (tmp_path / "a" / "b" / "nodes" / "node-000" / "journal.jsonl").exists()


@pytest.mark.parametrize("left", ["nodes", "summary.json"])
def test_an_earlier_run_is_not_written_over(left: str, tmp_path: Path) -> None:
    (tmp_path / left).mkdir()
    with pytest.raises(ConfigError, match="holds an earlier run"), directory(tmp_path):
        pass
    assert [p.name for p in tmp_path.iterdir()] == [left]


def test_other_files_do_not_matter(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with directory(tmp_path) as folder:
        learn(folder)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["nodes", "notes.txt"]


def test_a_run_in_which_nobody_began_can_be_repeated_in_the_same_place(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    for out in (tmp_path, tmp_path / "new"):
        with directory(out) as folder:
            (folder / "nodes" / "node-000").mkdir()
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


def test_a_place_that_cannot_be_made_is_the_users_mistake(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot create"), directory(tmp_path / "file"):
        pass
