"""Lines and file of the event journal."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from pfl_node.errors import StoreError
from pfl_node.sim.event_journal import EventJournal, exact
from tests.unit.sim.toy_swarms import A


def test_a_line_is_compact_and_its_keys_are_sorted(tmp_path: Path) -> None:
    with EventJournal(tmp_path / "journal.jsonl") as journal:
        journal.write(1.23456789, A, "round", zebra=1, ape=(A,))
    expected = b'{"ape":["n000"],"event":"round","node":"n000","time":1.234568,"zebra":1}\n'
    assert (tmp_path / "journal.jsonl").read_bytes() == expected


def test_numbers_are_written_the_same_whatever_their_type() -> None:
    assert exact({"a": np.float32(0.5), "b": np.int64(3), "c": 1 / 3}) == {"a": 0.5, "b": 3, "c": 0.333333333}
    assert exact([float("nan"), float("inf"), True, None]) == [None, None, True, None]
    assert exact({"set": {"b", "a"}, "count": Counter(x=2)}) == {"set": ["a", "b"], "count": {"x": 2}}


def test_what_cannot_be_written_is_an_error_that_names_its_type() -> None:
    with pytest.raises(TypeError, match="object"):
        exact({"x": object()})


def test_the_old_journal_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text("old\n")
    with suppress(RuntimeError), EventJournal(path) as journal:
        journal.write(0.0, A, "started")
        raise RuntimeError
    assert path.read_text() == "old\n"
    with EventJournal(path) as journal:
        journal.write(0.0, A, "started")
    assert "started" in path.read_text()
    assert [p.name for p in tmp_path.iterdir()] == ["journal.jsonl"]


def test_single_messages_can_be_left_out(tmp_path: Path) -> None:
    with EventJournal(tmp_path / "journal.jsonl", "rounds") as journal:
        journal.message(0.0, A, "sent")
        journal.write(0.0, A, "round")
    assert len((tmp_path / "journal.jsonl").read_text().splitlines()) == 1


def test_without_a_path_nothing_is_written() -> None:
    with EventJournal(None) as journal:
        journal.write(0.0, A, "round")


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    journal = EventJournal(tmp_path / "not there" / "journal.jsonl")
    with pytest.raises(StoreError, match="cannot write"):
        journal.write(0.0, A, "started")
