"""`pfl-node lab record --add`: a record that is completed by runs from elsewhere."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pfl_node.cli import main
from pfl_node.errors import ConfigError
from pfl_node.lab.publish.extend_record import extended
from pfl_node.lab.publish.records import ResultRecord, load, record_of
from pfl_node.lab.report.result import reopen
from tests.unit.lab.made_results import result

CELLS = [f"{run}/seed-{seed}" for run in ("local", "el", "facade") for seed in range(3)]


def made(tmp_path: Path, *only: str, **wishes: Any) -> Path:
    missing = tuple(cell for cell in CELLS if only and cell not in only)
    return result(tmp_path, leave_out=missing, **{"seeds": 3, "plots": "[]", **wishes})


def recorded(tmp_path: Path, *only: str, name: str = "mine-3", **wishes: Any) -> ResultRecord:
    return record_of(reopen(made(tmp_path, *only, **wishes)), name)


@pytest.mark.parametrize(
    "first",
    [
        CELLS[:3],  # whole runs
        CELLS[::3],  # one seed of each
        [
            cell for cell in CELLS if cell not in ("el/seed-1", "facade/seed-0")
        ],  # no record has both sides of a claim
    ],
)
def test_a_record_in_two_parts_is_the_record_of_the_whole(first: list[str], tmp_path: Path) -> None:
    rest = [cell for cell in CELLS if cell not in first]
    old, new = recorded(tmp_path / "old", *first), recorded(tmp_path / "new", *rest)
    assert old.missing == sorted(rest, key=CELLS.index)
    assert extended(old, new) == replace(recorded(tmp_path / "whole"), missing=[])


def test_a_run_that_both_have_counts_once_and_must_have_the_same_journal(tmp_path: Path) -> None:
    old, new = recorded(tmp_path / "old", *CELLS[:5]), recorded(tmp_path / "new", *CELLS[4:])
    both = extended(old, new)
    assert len(both.journals) == len(CELLS)
    other = recorded(tmp_path / "other", *CELLS[4:], better=0.01)
    with pytest.raises(
        ConfigError, match=r"el/seed-1 has another journal than in mine-3, of commit \S+: the results"
    ):
        extended(old, other)


def test_more_seeds_bring_their_command(tmp_path: Path) -> None:
    old, new = recorded(tmp_path / "old", seeds=1), recorded(tmp_path / "new")
    for both in (extended(old, new), extended(new, old)):
        assert both.seeds == [0, 1, 2]
        assert "--seeds 3" in both.command
        assert [claim.verdict.holding for claim in both.claims] == [3, 0]


def test_a_version_is_named_once_however_often_runs_are_added(tmp_path: Path) -> None:
    made_with = recorded(tmp_path, *CELLS[:3])
    parts = [replace(made_with, versions={"torch": version}) for version in ("2.1", "2.2", "2.1")]
    both = extended(extended(parts[0], parts[1]), parts[2])
    assert both.versions == {"torch": "2.1 and 2.2"}


def test_a_record_of_something_else_is_not_extended(tmp_path: Path) -> None:
    old = recorded(tmp_path / "old", *CELLS[:4])
    longer = recorded(tmp_path / "new", *CELLS[5:], rounds=25)
    with pytest.raises(
        ConfigError, match=r"EL has 8 nodes, 25 rounds; .* but in mine-3 it has 8 nodes, 20 rounds; .*--name"
    ):
        extended(old, longer)
    with pytest.raises(ConfigError, match=r"mine-3 is a record of scale 'quick', but this is 'paper'"):
        extended(old, replace(old, scale="paper"))
    with pytest.raises(ConfigError, match="mine-3 has no digests"):
        extended(replace(old, journals={}), old)
    with pytest.raises(ConfigError, match="mine-3 has Local, which the spec no longer has"):
        extended(old, replace(old, rows=old.rows[1:]))


def test_the_command_adds_to_the_file_or_says_that_there_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = str(tmp_path / "records")
    words = ("--records", records, "--name", "mine-3")
    assert main(["lab", "record", str(made(tmp_path / "old", *CELLS[:3])), *words, "--add"]) == 2
    assert "cannot read" in capsys.readouterr().err
    assert main(["lab", "record", str(tmp_path / "old" / "result"), *words]) == 0
    assert (
        main(["lab", "record", str(made(tmp_path / "new", *CELLS[3:])), *words, "--add", "--note", "More."]) == 0
    )
    found = load(tmp_path / "records" / "mine-3.json")
    assert sorted(found.journals) == sorted(CELLS)
    assert found.notes == ["More."]
    assert found.missing == []
