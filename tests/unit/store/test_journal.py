"""The journal: one JSON object a line, appended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pfl_node.errors import StoreError
from pfl_node.jsonable import plain
from pfl_node.store.journal import Journal, last_round
from tests.arm_failpoints import failing


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


@pytest.mark.parametrize("half", ['{"time":2,"eve', "{", "\0\0\0\0", "x" * 200_000, '{"time":2}{'])
def test_half_a_line_that_a_crash_left_is_cut_off(tmp_path: Path, half: str) -> None:
    file = tmp_path / "journal.jsonl"
    file.write_text('{"time":1,"event":"round"}\n' + half)
    journal = Journal(file)
    journal.write("started", {}, time=3.0)
    journal.write("round", {}, time=4.0)
    journal.close()
    assert events(file) == ["round", "started", "round"]


def test_a_journal_of_nothing_but_half_a_line_begins_anew(tmp_path: Path) -> None:
    file = tmp_path / "journal.jsonl"
    file.write_text('{"time":2,"eve')
    journal = Journal(file)
    assert file.read_text() == ""
    journal.close()


def test_a_whole_line_that_lacks_only_its_end_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "journal.jsonl"
    file.write_text('{"time":1,"event":"round"}\n{"time":2,"event":"last"}')
    journal = Journal(file)
    journal.write("started", {}, time=3.0)
    journal.close()
    assert events(file) == ["round", "last", "started"]


def test_where_half_a_line_cannot_be_cut_off_the_next_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "journal.jsonl"
    file.write_text('{"time":1,"event":"round"}\n{"time":2,"eve')
    with failing("journal.mend=error(EIO)"):
        journal = Journal(file)
        journal.write("started", {}, time=3.0)
        journal.close()
    lines = file.read_text().splitlines()
    assert [json.loads(line)["event"] for line in (lines[0], lines[2])] == ["round", "started"]


def events(file: Path) -> list[str]:
    return [json.loads(line)["event"] for line in file.read_text().splitlines()]


def test_a_full_disk_is_an_error_of_that_line_only_and_closing_is_none(tmp_path: Path) -> None:
    file = tmp_path / "journal.jsonl"
    file.symlink_to("/dev/full")
    journal = Journal(file)
    for _ in range(2):
        with pytest.raises(StoreError, match="No space left on device"):
            journal.write("round", {}, time=1.0)
    journal.close()


def test_a_line_that_got_half_way_to_the_disk_is_reported_and_all_others_are_whole(tmp_path: Path) -> None:
    file = tmp_path / "journal.jsonl"
    journal = Journal(file)
    journal.write("started", {}, time=0.5)
    with failing("journal.write=2*return"):
        for _ in range(2):
            with pytest.raises(StoreError, match="the disk is full"):
                journal.write("round", {}, time=1.0)
        journal.write("round", {}, time=1.5)
    journal.write("finished", {}, time=2.0)
    journal.close()
    assert events(file) == ["started", "round", "finished"]


def test_a_journal_that_cannot_be_synced_says_so(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.sync()
    with failing("journal.fsync=error(EIO)"), pytest.raises(StoreError, match="Input/output error"):
        journal.sync()
    journal.close()


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


def test_the_last_round_is_found_behind_half_a_line_and_other_events(tmp_path: Path) -> None:
    file = tmp_path / "journal.jsonl"
    assert last_round(file) is None
    journal = Journal(file)
    journal.write("started", {"settings": "x" * 100_000}, time=0.0)
    assert last_round(file) is None
    for round in (6, 7):
        journal.write("round", {"round": round}, time=1.0)
    journal.write("finished", {}, time=2.0)
    journal.close()
    with file.open("ab") as torn:
        torn.write(b'{"event":"round","rou')
    assert last_round(file) == 7
