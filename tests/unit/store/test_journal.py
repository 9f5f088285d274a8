"""The journal: one JSON object a line, appended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pfl_node.errors import StoreError
from pfl_node.plain import plain
from pfl_node.store.journal import Journal


def test_lines_are_there_at_once_and_a_second_start_appends(tmp_path: Path) -> None:
    file = tmp_path / "journal.jsonl"
    first = Journal(file)
    first.write("round", {"round": 0}, time=1.5)
    assert json.loads(file.read_text()) == {"time": 1.5, "event": "round", "round": 0}
    first.close()
    second = Journal(file)
    second.write("round", {"round": 1}, time=2.5)
    second.close()
    assert [json.loads(line)["round"] for line in file.read_text().splitlines()] == [0, 1]


def test_a_journal_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot write"):
        Journal(tmp_path)


def test_a_line_that_was_torn_by_a_crash_does_not_spoil_the_next(tmp_path: Path) -> None:
    file = tmp_path / "journal.jsonl"
    file.write_text('{"time":1,"event":"round"}\n{"time":2,"eve')
    journal = Journal(file)
    journal.write("started", {}, time=3.0)
    journal.write("round", {}, time=4.0)
    journal.close()
    lines = file.read_text().splitlines()
    assert [json.loads(line)["event"] for line in (lines[0], *lines[2:])] == ["round", "started", "round"]


def test_a_full_disk_is_an_error_of_that_line_only_and_closing_is_none(tmp_path: Path) -> None:
    file = tmp_path / "journal.jsonl"
    file.symlink_to("/dev/full")
    journal = Journal(file)
    for _ in range(2):
        with pytest.raises(StoreError, match="No space left on device"):
            journal.write("round", {}, time=1.0)
    journal.close()


def test_a_line_that_got_half_way_to_the_disk_is_reported_and_the_next_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "journal.jsonl"
    journal = Journal(file)
    whole = journal._file

    class Half:
        def write(self, line: bytes) -> int:
            return whole.write(line[: len(line) // 2]) or 0

    journal._file = Half()  # type: ignore[assignment]
    with pytest.raises(StoreError, match="the disk is full"):
        journal.write("round", {}, time=1.0)
    journal._file = whole
    journal.write("finished", {}, time=2.0)
    journal.close()
    assert json.loads(file.read_text().splitlines()[1])["event"] == "finished"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (float("nan"), None),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        ({(1, 2): {1: float("-inf")}}, {"(1, 2)": {"1": None}}),
        (({1},), [[1]]),
        (Path("a"), "a"),
    ],
)
def test_what_json_does_not_know_is_made_plain(value: Any, expected: Any) -> None:
    assert plain(value) == expected
    json.dumps(plain(value), allow_nan=False)


def test_the_journals_own_words_win_over_a_policys(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.write("found", {"event": "mine", "time": 0, "who": {"b", "a"}}, time=2.0)
    journal.close()
    row = json.loads((tmp_path / "journal.jsonl").read_text())
    assert row == {"time": 2.0, "event": "found", "who": ["a", "b"]}
