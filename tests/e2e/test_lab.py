"""`pfl-node lab` as a user types it: an experiment of one's own, broken off with kill -9 and gone on with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

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


def lab(folder: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "pfl_node", "lab", *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finished(process: subprocess.Popen[str], code: int = 0) -> tuple[str, str]:
    out, err = process.communicate(timeout=240)
    assert process.returncode == code, err
    return out, err


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
    finished(lab(spec, "run", "tiny.toml", "--out", "whole"))
    broken = lab(spec, "run", "tiny.toml", "--out", "broken", "--workers", "1")
    deadline = time.monotonic() + 120
    while not list((spec / "broken").glob("*/seed-0/segments/??????/swarm.json")):
        assert broken.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline, "no segment was written"
        time.sleep(0.02)
    os.killpg(broken.pid, signal.SIGKILL)
    broken.communicate()
    assert len(found(spec / "broken")) < 2
    finished(lab(spec, "run", "tiny.toml", "--out", "broken", "--workers", "1"))
    assert found(spec / "broken") == found(spec / "whole")
    assert len(found(spec / "whole")) == 2


def test_what_is_done_is_not_done_again_and_the_paper_stands_beside_ours(spec: Path) -> None:
    finished(lab(spec, "run", "tiny.toml", "--set", "rounds=5", "--workers", "1"))
    out, err = finished(lab(spec, "run", "tiny.toml", "--set", "rounds=5"))
    assert err.count("already done") == 2
    assert "(90.0" in out
    out, _ = finished(lab(spec, "run", "tiny.toml", "--set", "rounds=5", "--format", "json"))
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
    _, err = finished(lab(spec, *words), code=2)
    assert err.count("\n") == 1
    assert says in err
