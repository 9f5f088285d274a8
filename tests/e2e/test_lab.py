"""`pfl-node lab` as a user types it: an experiment of one's own, broken off with kill -9 and gone on with."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.processes import own_process_command, preloaded_command, processes, until

SPEC = """
title = "A tiny experiment"
paper = "none"
metrics = ["accuracy", "cpu"]
[settings]
task = { name = "digits", samples = 20 }
eval = { every = 10 }
[paper_scale]
nodes = 6
rounds = 60
[quick_scale]
nodes = 4
rounds = 30
[[run]]
label = "EL"
settings = { policy = { name = "el" } }
figures = { accuracy = 90 }
[[run]]
label = "PENS"
settings = { policy = { name = "pens", T = 5, n_sampled = 3, m = 1, n_peers = 2 } }
"""


def finished(done: subprocess.CompletedProcess[str], code: int = 0) -> tuple[str, str]:
    assert done.returncode == code, done.stderr
    return done.stdout, done.stderr


def found(folder: Path) -> dict[str, Any]:
    """Everything that the cells found, but for the time it took."""
    cells = {}
    for path in sorted(folder.glob("**/summary.json")):
        summary = {k: v for k, v in json.loads(path.read_text()).items() if not k.endswith("_seconds")}
        cells[str(path.relative_to(folder))] = (summary, (path.parent / "journal.jsonl").read_bytes())
    return cells


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    (tmp_path / "tiny.toml").write_text(SPEC, encoding="utf-8")
    return tmp_path


def test_a_lab_that_was_killed_goes_on_and_ends_as_one_that_was_not(spec: Path) -> None:
    words = ("lab", "run", "tiny.toml", "--workers", "1", "--out")
    finished(preloaded_command(*words, "whole", cwd=spec))
    with processes(spec, preloaded=True) as start:
        broken = start("pfl_node", *words, "broken")
        until(lambda: list((spec / "broken").glob("*/seed-0/segments/??????/swarm.json")), broken)
        process = psutil.Process(broken.popen.pid)
        family = [process, *process.children(recursive=True)]
        for one in family:
            one.kill()
        broken.wait()
        psutil.wait_procs(family[1:])
    assert len(found(spec / "broken")) < 2
    finished(preloaded_command(*words, "broken", cwd=spec))
    assert found(spec / "broken") == found(spec / "whole")
    assert len(found(spec / "whole")) == 2


def test_only_a_part_is_run_and_the_rest_later(spec: Path) -> None:
    words = ("lab", "run", "tiny.toml", "--set", "rounds=5", "--workers", "1")
    out, err = finished(preloaded_command(*words, "--only", "PENS", cwd=spec))
    assert [line.split(":")[0] for line in err.splitlines() if "done" in line] == ["1/1 PENS, seed 0"]
    assert "not finished: EL, seed 0" in out
    _, err = finished(preloaded_command(*words, cwd=spec))
    assert "1/2 PENS, seed 0: already done" in err or "2/2 PENS, seed 0: already done" in err
    _, err = finished(preloaded_command(*words, "--only", "Pens", cwd=spec), 2)
    assert err.strip().endswith("tiny has no run or point 'Pens'; did you mean 'PENS'?")


def test_what_is_done_is_not_done_again_and_the_paper_stands_beside_ours(spec: Path) -> None:
    words = ("lab", "run", "tiny.toml", "--set", "rounds=5")
    finished(preloaded_command(*words, "--workers", "1", cwd=spec))
    out, err = finished(own_process_command(*words, cwd=spec))
    assert err.count("already done") == 2
    assert "(90.0" in out
    out, _ = finished(own_process_command(*words, "--format", "json", cwd=spec))
    rows = json.loads(out)["rows"]
    assert [row["run"] for row in rows] == ["EL", "PENS"]
    assert rows[0]["accuracy"]["paper"] == 0.9


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("run", "digits-cluster"), "there is no experiment 'digits-cluster'; did you mean 'digits-clusters'?"),
        (("run", "none.toml"), "cannot read none.toml"),
        (("run", "tiny.toml", "--set", "task.angle=3"), "task digits has no option 'angle'"),
        (("show", "tiny.toml", "--scale", "large"), "large"),
        (("walk",), "no such verb 'walk'"),
    ],
)
def test_a_mistake_is_one_line(spec: Path, words: tuple[str, ...], says: str) -> None:
    _, err = finished(own_process_command("lab", *words, cwd=spec), code=2)
    assert err.count("\n") == 1
    assert says in err
