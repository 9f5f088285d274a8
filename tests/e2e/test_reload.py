"""New data without a restart: the command, SIGHUP and task.refresh call the task again."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pfl_node import RunResult, simulate
from tests.e2e.processes import Process, own_process_command, processes, until
from tests.identities import Site

TASK = """
import numpy as np
from pathlib import Path
from torch import nn

COUNT = Path(__file__).with_name("count")

def growing(index=None):
    n = int(COUNT.read_text())
    if n < 0:
        raise ValueError("the table has no rows")
    rng = np.random.default_rng(n)
    y = rng.integers(0, 3, n)
    x = rng.normal(y[:, None], 1.0, (n, 4)).astype("float32")
    out = 3 if n != 77 else 4
    return {"model": lambda: nn.Linear(4, out), "train": (x, y), "val": (x[:9], y[:9])}
"""


@pytest.fixture
def task(tmp_path: Path) -> Path:
    (tmp_path / "count").write_text("40")
    (tmp_path / "growing.py").write_text(TASK)
    return tmp_path / "growing.py"


Start = Callable[..., Process]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with processes(tmp_path, preloaded=True) as starter:
        yield starter


def arguments(task: Path) -> list[object]:
    """Ten rounds in a second: more would only keep the processor busy while the test asks."""
    sets = ["--set", "start.wait=0", "--set", "round.every=0.1"]
    return ["--task", f"{task}:growing", "--policy", "local", *sets, "--log-format", "json"]


def events(node: Process, kind: str) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in node.output.splitlines() if line.startswith("{")]
    return [row for row in rows if row["event"].startswith(kind)]


def test_a_running_node_takes_new_data_and_keeps_the_old_when_the_task_fails(
    task: Path, start: Start, tmp_path: Path
) -> None:
    node = start("pfl_node", *arguments(task), "--data-dir", tmp_path / "node")
    until(lambda: '"event": "round"' in node.output, node)
    count = task.with_name("count")
    count.write_text("60")
    done = own_process_command("reload", node.address)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{node.address}: 60 samples for train, 9 samples for val, 9 samples for test\n"

    for n, why in ((-1, "ValueError: the table has no rows"), (77, "returned another model")):
        count.write_text(str(n))
        done = own_process_command("reload", node.address)
        assert done.returncode == 2
        assert done.stderr.startswith(f"pfl-node: {node.address} keeps its old data: task {task}:growing ")
        assert why in done.stderr
        assert done.stderr.count("\n") == 1

    count.write_text("80")
    node.popen.send_signal(signal.SIGHUP)  # without a terminal it does not end the node
    [first, second] = until(
        lambda: rows if len(rows := events(node, "the task was reloaded")) == 2 else None, node
    )
    assert (first["samples"], second["samples"]) == (60, 80)
    assert len(events(node, "the task was not reloaded; the old data stays in use")) == 2
    status = json.loads(own_process_command("status", node.address, "--format", "json").stdout)
    assert status["samples"] == 80
    node.popen.send_signal(signal.SIGTERM)
    assert node.wait() == 0
    journal = [json.loads(line) for line in (tmp_path / "node" / "journal.jsonl").read_text().splitlines()]
    assert [row["samples"] for row in journal if row["event"] == "reloaded"] == [60, 80]
    rounds = [row["round"] for row in journal if row["event"] == "round"]
    assert rounds == list(range(len(rounds)))  # none is repeated or left out


def test_a_closed_terminal_ends_a_node_in_order(task: Path, tmp_path: Path) -> None:
    line = [sys.executable, "-m", "pfl_node", *map(str, arguments(task)), "--data-dir", str(tmp_path / "node")]
    controller, terminal = pty.openpty()
    code = (
        "import fcntl, os, sys, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    with (tmp_path / "log").open("w") as log:
        node = subprocess.Popen(
            [sys.executable, "-c", code, *line],
            stdin=terminal,
            stdout=log,
            stderr=log,
            cwd=Path(__file__).parents[2],
        )
    os.close(terminal)
    try:
        until(lambda: '"event": "round"' in (tmp_path / "log").read_text())
        os.close(controller)
        assert node.wait(60) == 0
    finally:
        node.kill()
        node.wait()
    assert '"its terminal was closed"' in (tmp_path / "log").read_text()


def test_with_tls_only_an_operator_or_the_node_itself_may_reload(task: Path, start: Start, tmp_path: Path) -> None:
    site = Site(tmp_path, "our CA")
    for name in ("node", "ann", "olga"):
        site.member(name, operator=name == "olga")
    node = start("pfl_node", *arguments(task), "--tls", "--data-dir", tmp_path / "node")
    until(lambda: '"event": "round"' in node.output, node)
    for name in ("olga", "node"):
        done = own_process_command("reload", node.address, "--data-dir", tmp_path / name)
        assert (done.returncode, done.stderr) == (0, "")
    done = own_process_command("reload", node.address, "--data-dir", tmp_path / "ann")
    assert done.returncode == 1
    assert "Reload needs an operator's certificate or the node's own" in done.stderr


def simulated(task: Path, **given: Any) -> RunResult:
    settings = {"refresh": 0.5, "name": f"{task}:growing"}
    return simulate(settings, "local", nodes=2, rounds=30, **given)


def test_refresh_calls_the_task_again_in_virtual_time_too(task: Path) -> None:
    simulated(task, on_round=lambda _: task.with_name("count").write_text("50"))  # grows in the first round
    again = simulated(task, out=task.parent / "out")
    rows = [json.loads(line) for line in (task.parent / "out" / "journal.jsonl").read_text().splitlines()]
    reloads = [row for row in rows if row["event"] == "reloaded"]
    assert {row["node"] for row in reloads} == {"n000", "n001"}
    assert all(row["samples"] == 50 for row in reloads)
    workers = simulated(task, jobs=2)
    assert workers.rounds == again.rounds
