"""`pfl-node lab run --backend swarm` as a user types it: beside a simulation, broken off, and with mistakes."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.processes import Process, own_process_command, preloaded_command, processes, until
from tests.e2e.test_swarm import all_gone

SPEC = """
title = "A tiny experiment"
paper = "none"
clusters = ["upright", "upside down"]
metrics = [
  "accuracy", "minority", "equalized_odds", "precision", "settled_after", "communication", "megabytes", "cpu",
]
plots = ["who_from_whom"]
[settings]
task = { name = "digits", samples = 20 }
eval = { every = 2, on = ["test"] }
[paper_scale]
nodes = 4
rounds = 60
[quick_scale]
nodes = 4
rounds = 4
"""
EL = '[[run]]\nlabel = "EL"\nsettings = { policy = { name = "el", degree = 2 } }\n'
FACADE = '[[run]]\nlabel = "FACADE"\nsettings = { policy = { name = "facade", degree = 2, warmup = 1 } }\n'
PENS = """
[[run]]
label = "PENS"
settings = { policy = { name = "pens", T = 3, n_sampled = 2, m = 1, n_peers = 2, delta = 0.1, quiet = 1 } }
"""
ORACLE = '[[run]]\nlabel = "Oracle"\nsettings = { policy = { name = "oracle" } }\n'
NODES, DEGREE = 4, 2


def written(folder: Path, *runs: str) -> None:
    (folder / "tiny.toml").write_text(SPEC + "".join(runs), encoding="utf-8")


def lab(folder: Path, *words: object, code: int = 0) -> tuple[str, str]:
    done = preloaded_command("lab", *words, cwd=folder)
    assert done.returncode == code, done.stderr
    return done.stdout, done.stderr


def lab_here(folder: Path, *words: object, code: int = 0) -> tuple[str, str]:
    """In the test's own process: where no cell is left to be run."""
    done = own_process_command("lab", *words, cwd=folder)
    assert done.returncode == code, done.stderr
    return done.stdout, done.stderr


def in_swarm(folder: Path, *words: object, code: int = 0) -> tuple[str, str]:
    return lab(folder, "run", "tiny.toml", "--backend", "swarm", "--workers", 1, *words, code=code)


def summary(cell: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((cell / "summary.json").read_text())
    return found


def names(cell: Path) -> set[str]:
    return {file.name for file in cell.iterdir()}


def rows(cell: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (cell / "journal.jsonl").read_text().splitlines()]


def measured(row: dict[str, Any]) -> set[str]:
    return {name for name, found in row.items() if isinstance(found, dict) and found["mean"] is not None}


def compared(folder: Path, runs: list[str]) -> dict[str, Any]:
    """Both backends ran; the same measures exist, and what a real run left is read as a simulated one is."""
    out, _ = in_swarm(folder, "--format", "json")
    real = json.loads(out)
    simulated = json.loads(lab(folder, "run", "tiny.toml", "--format", "json")[0])
    assert [row["run"] for row in real["rows"]] == runs
    assert [measured(row) for row in real["rows"]] == [measured(row) for row in simulated["rows"]]
    assert (real["backend"], simulated["backend"]) == ("swarm", "sim")
    both: dict[str, Any] = json.loads(
        lab_here(folder, "compare", "lab/tiny-quick", "lab/tiny-quick-swarm", "--format", "json")[0]
    )
    assert {"what": "backend", "a": "sim", "b": "swarm"} in both["unlike"]
    return both


def test_a_swarm_leaves_what_a_simulation_leaves_and_they_can_be_compared(tmp_path: Path) -> None:
    written(tmp_path, EL)
    both = compared(tmp_path, ["EL"])
    # Nodes of the same names draw the same graphs and seeds, so that a lockstep policy learns the same in both.
    difference = {row["metric"]: row["difference"] for row in both["rows"]}
    assert (difference["accuracy"], difference["equalized_odds"], difference["communication"]) == (0, 0, 0)
    result = tmp_path / "lab" / "tiny-quick-swarm"
    cell = result / "el" / "seed-0"
    assert names(cell) == names(tmp_path / "lab" / "tiny-quick" / "el" / "seed-0")
    assert json.loads((cell / "settings.json").read_text())["backend"] == "swarm"
    assert json.loads((result / "environment.json").read_text())["backend"] == "swarm"
    assert summary(cell)["models_sent"] == 4 * NODES * DEGREE
    assert Counter(row["event"] for row in rows(cell))["taken"] == 4 * NODES * DEGREE
    assert "real nodes over gRPC, 4 nodes in 1 process" in (result / "table.md").read_text()
    assert "real nodes over gRPC, 4 nodes in 1 process" in (result / "report.html").read_text()
    assert "--backend swarm" in json.loads((result / "results.json").read_text())["command"]
    assert list((result / "plots").glob("who*.svg"))
    _, err = lab_here(tmp_path, "run", "tiny.toml", "--backend", "swarm")
    assert err.count("already done") == 1
    _, err = lab_here(tmp_path, "run", "tiny.toml", "--out", "lab/tiny-quick-swarm", code=2)
    assert err.count("\n") == 1
    assert "holds results of --backend swarm" in err


@pytest.mark.slow
def test_policies_of_every_kind_have_the_same_measures_in_both(tmp_path: Path) -> None:
    written(tmp_path, FACADE, PENS, ORACLE)
    compared(tmp_path, ["FACADE", "PENS", "Oracle"])
    real = {
        run: summary(tmp_path / "lab/tiny-quick-swarm" / run / "seed-0") for run in ("facade", "pens", "oracle")
    }
    assert real["facade"]["heads_by_cluster"]
    assert real["pens"]["neighbours"]["precision"] is not None
    assert real["oracle"]["neighbours"]["precision"] == 1.0


# -- broken off ------------------------------------------------------------------------------------------------


def written_part(mark: Path) -> int:
    """The number of the state of the swarm that is on disk."""
    return int(json.loads(mark.read_text())["part"])


def at_work(process: Process, mark: Path, beyond: int) -> tuple[int, list[psutil.Process]]:
    """When a later state of the swarm is on disk: its number, and all processes below."""

    def part() -> int | None:
        found = written_part(mark) if mark.exists() else 0
        return found if found > beyond else None

    found = until(part, process)
    return found, psutil.Process(process.popen.pid).children(recursive=True)


def test_a_swarm_that_was_broken_off_goes_on_and_counts_as_one(tmp_path: Path) -> None:
    rounds, segment = 120, 6
    written(tmp_path, EL)
    words = ["lab", "run", "tiny.toml", "--backend", "swarm", "--workers", 1, "--set", f"rounds={rounds}"]
    cell = tmp_path / "lab" / "tiny-quick-swarm" / "el" / "seed-0"
    mark = cell / "swarm" / "mark.json"
    with processes(tmp_path, preloaded=True) as start:
        process = start("pfl_node", *words)
        part, children = at_work(process, mark, 0)
        process.popen.send_signal(signal.SIGINT)
        assert process.wait() == 130
        assert "Traceback" not in process.output
        assert len(children) == 2  # of the cell, and of its nodes
        until(lambda: all_gone(children))
        stopped = written_part(mark)  # it may have written another one
        assert stopped >= part
        process = start("pfl_node", *words)
        _, children = at_work(process, mark, stopped)
        process.popen.kill()
        process.wait()
        until(lambda: all_gone(children))
        part = written_part(mark)  # again it may have written another one
        assert part > stopped
        assert not (cell / "summary.json").exists()
        process = start("pfl_node", *words)
        assert process.wait() == 0, process.output
    found = rows(cell)
    begun = [row["round"] for row in found if row["event"] == "started" and row["node"] == "n000"]
    assert len(begun) == 3
    assert begun == sorted(set(begun))
    assert begun[-1] == segment * part
    told = [(row["node"], row["round"]) for row in found if row["event"] == "round"]
    assert sorted(told) == [(f"n00{i}", t) for i in range(NODES) for t in range(rounds)]
    assert [row["time"] for row in found] == sorted(row["time"] for row in found)
    sent = [row["bytes_sent"] for row in found if row["event"] == "round" and row["node"] == "n000"]
    assert sent == sorted(set(sent))
    total = summary(cell)
    assert total["models_sent"] == rounds * NODES * DEGREE
    assert total["per_node"][0]["bytes_sent"] == sent[-1]
    assert not (cell / "swarm").exists()


# -- mistakes --------------------------------------------------------------------------------------------------


def test_a_run_that_fails_is_told_in_one_line_and_the_others_are_run(tmp_path: Path) -> None:
    wrong = '[[run]]\nlabel = "Wrong"\nsettings = { rounds = 2, policy = { name = "feded" } }\n'
    written(tmp_path, wrong, EL)  # the longer one comes first
    out, err = in_swarm(tmp_path, code=1)
    assert "wrong/seed-0 failed: policy feded needs auxiliary samples" in err
    assert "Traceback" not in err
    assert "not finished: Wrong" in out
    assert "in 1 process" in out


def test_a_backend_that_is_not_known_is_one_line(tmp_path: Path) -> None:
    written(tmp_path, EL)
    _, err = lab_here(tmp_path, "run", "tiny.toml", "--backend", "cloud", code=2)
    assert err.count("\n") == 1
    assert "cloud" in err
