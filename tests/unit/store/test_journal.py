"""The journal: one JSON object a line, appended."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pfl_node.errors import StoreError
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
