"""A user's own policy and task in an experiment: where they are found, and that a change of theirs is seen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pfl_node.errors import ConfigError
from pfl_node.lab import spec
from pfl_node.lab.experiment import Experiment
from pfl_node.lab.report.result import reopen
from pfl_node.lab.result_comparison import compare, side
from pfl_node.lab.results_dir import ResultsDir

SPEC = """
title = "Mine"
paper = "none"
metrics = ["accuracy"]
[settings]
task = { name = "tasks/ward.py:ward" }
[paper_scale]
nodes = 4
rounds = 5
[quick_scale]
nodes = 2
rounds = 3
[[run]]
label = "Mine"
settings = { policy = { name = "mine.py:Mine" } }
[[run]]
label = "EL"
settings = { policy = { name = "el" } }
"""
POLICY = """
from knobs import RATE
from pfl_node.policies.local import Local

class Mine(Local):
    "A policy."
"""
TASK = "def ward(seed): return {}\n"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "tasks").mkdir()
    for name, text in {
        "mine.toml": SPEC,
        "mine.py": POLICY,
        "knobs.py": "RATE = 1\n",
        "tasks/ward.py": TASK,
    }.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def done(home: Path) -> tuple[ResultsDir, Experiment]:
    """The folder of a run in which everything is done."""
    experiment, folder = spec.load(str(home / "mine.toml")), ResultsDir(home / "out")
    folder.prepare(experiment)
    for cell in experiment.cells:
        folder.begin(cell)
        (folder.place(cell) / "summary.json").write_text(json.dumps({"accuracy": 0.5, "per_node": []}))
        (folder.place(cell) / "journal.jsonl").write_text("")
    return folder, experiment


def left(home: Path, folder: ResultsDir) -> list[str]:
    experiment = spec.load(str(home / "mine.toml"))
    return [cell.run for cell in experiment.cells if not folder.is_done(cell)]


def test_files_are_looked_for_beside_the_spec(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "elsewhere").mkdir()
    monkeypatch.chdir(home / "elsewhere")
    experiment = spec.load("../mine.toml")
    assert [c.settings.policy.name for c in experiment.cells] == [f"{home}/mine.py:Mine", "el"]
    assert {c.settings.task.name for c in experiment.cells} == {f"{home}/tasks/ward.py:ward"}


def test_a_file_that_is_not_there_is_one_line(home: Path) -> None:
    (home / "mine.py").unlink()
    with pytest.raises(ConfigError, match=r"there is no file .*/mine.py"):
        spec.load(str(home / "mine.toml"), plugins=True)


@pytest.mark.parametrize(
    ("file", "again"),
    [("mine.py", ["Mine"]), ("knobs.py", ["Mine"]), ("tasks/ward.py", ["Mine", "EL"]), ("other.py", [])],
)
def test_a_change_of_a_file_makes_its_runs_anew(home: Path, file: str, again: list[str]) -> None:
    folder, _ = done(home)
    assert left(home, folder) == []
    with (home / file).open("a") as text:
        text.write("# another word\n")
    assert left(home, folder) == again


def test_a_comparison_names_the_files_that_differ(home: Path) -> None:
    done(home)[0].path.rename(home / "before")
    with (home / "mine.py").open("a") as text:
        text.write("# another word\n")
    found = compare(side(home / "before"), side(done(home)[0].path))
    assert [what for what, _, _ in found.unlike] == ["Mine: policy mine.py"]


def test_where_the_files_are_does_not_matter(home: Path) -> None:
    folder, _ = done(home)
    (home / "moved").mkdir()
    for name in ("mine.toml", "mine.py", "knobs.py", "tasks"):
        (home / name).rename(home / "moved" / name)
    assert left(home / "moved", folder) == []


def test_a_copy_of_the_files_is_kept_and_the_folder_can_be_read_without_them(home: Path) -> None:
    folder, _ = done(home)
    for name in ("mine.toml", "mine.py", "knobs.py", "tasks/ward.py"):
        (home / name).unlink()
    kept = {str(path.relative_to(folder.path / "sources")) for path in (folder.path / "sources").rglob("*.py")}
    assert kept == {"mine.py", "knobs.py", "tasks/ward.py"}
    record = reopen(folder.path)
    assert len(record.results.found) == 2
    assert "--set" not in record.command
    again = spec.load(str(folder.path / "spec.toml"))
    assert again.name == "mine"
    assert all(folder.is_done(cell) for cell in again.cells)
