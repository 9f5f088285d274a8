"""The node's directory: identity over restarts, and one owner at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from pfl_node.errors import ConfigError, StoreError
from pfl_node.store.data_dir import DataDir, NodeIdentity
from tests.arm_failpoints import failing


def test_a_restarted_node_is_the_same_with_a_higher_incarnation(tmp_path: Path) -> None:
    first = DataDir.open(tmp_path)
    first.close()
    second = DataDir.open(tmp_path)
    second.close()
    assert second.identity.id == first.identity.id
    assert second.identity.incarnation == first.identity.incarnation + 1


def test_two_directories_are_two_nodes(tmp_path: Path) -> None:
    a, b = DataDir.open(tmp_path / "a"), DataDir.open(tmp_path / "b")
    assert a.identity.id != b.identity.id
    a.close()
    b.close()


def test_a_directory_in_use_is_refused_in_one_line_that_says_what_to_do(tmp_path: Path) -> None:
    home = DataDir.open(tmp_path)
    with pytest.raises(ConfigError, match=r"in use by another node \(pid \d+\); .*--data-dir") as caught:
        DataDir.open(tmp_path)
    assert "\n" not in str(caught.value)
    home.close()


def test_without_a_directory_the_first_free_one_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    one, two = DataDir.open(None), DataDir.open(None)
    assert [one.path.name, two.path.name] == ["node-1", "node-2"]
    identity = one.identity.id
    one.close()
    again = DataDir.open(None)
    assert again.path.name == "node-1"
    assert again.identity.id == identity
    again.close()
    two.close()


def test_a_directory_with_a_number_is_a_slot(tmp_path: Path) -> None:
    home = DataDir.open(tmp_path / "node-12")
    assert home.slot == 11
    home.close()


def test_a_slot_needs_a_number(tmp_path: Path) -> None:
    home = DataDir.open(tmp_path / "mine")
    with pytest.raises(ConfigError, match="mine has no number: name it like node-1"):
        _ = home.slot
    home.close()


def test_a_damaged_identity_is_an_error_and_not_a_new_identity(tmp_path: Path) -> None:
    DataDir.open(tmp_path).close()
    (tmp_path / "identity.json").write_text("{")
    with pytest.raises(StoreError, match=r"identity.json is damaged"):
        DataDir.open(tmp_path)


def test_a_directory_that_cannot_be_made_is_the_users_mistake(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot use data directory"):
        DataDir.open(tmp_path / "file" / "node")


def test_an_incarnation_raised_while_running_is_not_used_again(tmp_path: Path) -> None:
    first = DataDir.open(tmp_path)
    first.keep_incarnation(9)
    first.keep_incarnation(4)
    first.close()
    second = DataDir.open(tmp_path)
    second.close()
    assert second.identity.incarnation == 10


def test_a_digit_of_the_identity_that_changed_is_noticed(tmp_path: Path) -> None:
    first = DataDir.open(tmp_path)
    first.close()
    file, id = tmp_path / "identity.json", str(first.identity.id)
    other = f"{int(id[0], 16) ^ 1:x}{id[1:]}"
    file.write_text(file.read_text().replace(id, other))
    with pytest.raises(StoreError, match=r"is damaged .its checksum does not match"):
        DataDir.open(tmp_path)


def test_an_identity_from_before_there_were_checksums_is_read(tmp_path: Path) -> None:
    (tmp_path / "identity.json").write_text('{"id": "0123456789abcdef", "incarnation": 4}')
    home = DataDir.open(tmp_path)
    home.close()
    assert (home.identity.id, home.identity.incarnation) == ("0123456789abcdef", 5)


@pytest.mark.parametrize("step", ["create", "write", "fsync", "rename"])
def test_a_full_disk_leaves_the_identity_as_it_was(tmp_path: Path, step: str) -> None:
    first = DataDir.open(tmp_path)
    with (
        failing(f"identity.{step}=error(ENOSPC)"),
        pytest.raises(StoreError, match=r"identity.json: No space left"),
    ):
        first.keep_incarnation(9)
    first.close()
    with (
        failing(f"identity.{step}=error(ENOSPC)"),
        pytest.raises(StoreError, match=r"identity.json: No space left"),
    ):
        DataDir.open(tmp_path)
    second = DataDir.open(tmp_path)
    second.close()
    assert second.identity == NodeIdentity(first.identity.id, 2)


def test_an_incarnation_that_nobody_would_believe_starts_again_from_1(tmp_path: Path) -> None:
    first = DataDir.open(tmp_path)
    first.keep_incarnation((1 << 53) - 2)
    first.close()
    second = DataDir.open(tmp_path)
    second.close()
    assert (second.identity.id, second.identity.incarnation) == (first.identity.id, 1)
