"""Swarms that end before their time: Ctrl-C, killed processes, mistakes. Nothing is left of any of them."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import psutil
import pytest

from pfl_node.settings import Settings
from pfl_node.swarm import supervisor
from tests.e2e.processes import DEADLINE, Process, fast, own_process_command, preloaded_command, processes, until

TASK = '''
import time
from pathlib import Path

import numpy as np
from torch import nn


def small(index: int) -> dict[str, object]:
    print("the task says hello")
    rng = np.random.default_rng(index)
    y = rng.integers(0, 2, 40)
    return {"model": lambda: nn.Linear(4, 2), "train": (rng.normal(y[:, None], 1.0, (40, 4)).astype("float32"), y)}


def slow(index: int) -> dict[str, object]:
    Path(f"loading-{index}").touch()
    time.sleep(600)
    return small(index)


def broken(index: int) -> dict[str, object]:
    return {"model": nn.Linear(4, 2), "train": 1 / 0}


def tired(index: int) -> dict[str, object]:
    """Fails while it trains."""
    left = [0, 0, 0]
    return {**small(index), "loss": lambda output, y: nn.functional.cross_entropy(output, y) + left.pop()}
'''


def family(process: Process) -> list[psutil.Process]:
    """The worker processes, once they are there."""
    return until(lambda: psutil.Process(process.popen.pid).children(recursive=True) or None, process)


def all_gone(children: list[psutil.Process]) -> bool:
    return not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children)


def learning(out: Path, nodes: int) -> bool:
    """Has every node done a round?"""
    journals = list(out.glob("nodes/*/journal.jsonl"))
    return len(journals) == nodes and all('"event":"round"' in journal.read_text() for journal in journals)


def interrupted(process: Process) -> list[psutil.Process]:
    children = family(process)
    process.popen.send_signal(signal.SIGINT)
    return children


def endless(*, workers: int = 1) -> list[object]:
    return ["swarm", "-n", 3, "--workers", workers, "--policy", "el", "--out", "out", *fast()]


# -- Ctrl-C ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["demo", "swarm"])
def test_ctrl_c_while_torch_is_imported_leaves_nothing(verb: str, tmp_path: Path) -> None:
    with processes(tmp_path) as start:
        process = start("pfl_node", verb, "-n", 2, "--out", "out")
        process.says("importing torch")
        children = interrupted(process)
        assert process.wait() == 130
        assert process.output.splitlines()[-1] == "stopped before any node finished a round"
        assert "Traceback" not in process.output
        until(lambda: all_gone(children))
    assert not (tmp_path / "out").exists()


def test_ctrl_c_while_they_learn_ends_in_a_report_of_what_there_is(tmp_path: Path) -> None:
    with processes(tmp_path, preloaded=True) as start:
        process = start("pfl_node", *endless())
        until(lambda: learning(tmp_path / "out", 3), process)
        children = interrupted(process)
        assert process.wait() == 0, process.output
        assert "el on digits: 3 nodes, stopped after" in process.output
        assert "test accuracy" in process.output
        assert "Traceback" not in process.output
        until(lambda: all_gone(children))
    assert (tmp_path / "out" / "summary.json").exists()
    assert len(list((tmp_path / "out").glob("nodes/*/model.safetensors"))) == 3


def test_the_second_ctrl_c_does_not_wait_for_nodes_that_cannot_leave(tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text(TASK)
    with processes(tmp_path, preloaded=True) as start:
        process = start("pfl_node", "swarm", "-n", 2, "--workers", 1, "--task", "task.py:slow")
        until(lambda: any(tmp_path.glob("loading-*")), process)
        children = interrupted(process)
        process.says("stopping")
        process.popen.send_signal(signal.SIGINT)
        assert process.wait() == 130
        assert process.output.splitlines()[-1] == "killed"
        assert "Traceback" not in process.output
        until(lambda: all_gone(children))


def test_nodes_that_cannot_leave_are_ended_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "GRACE", 0.5)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "task.py").write_text(TASK)
    swarm = supervisor.Swarm(
        Settings.model_validate({"task": {"name": "task.py:slow"}}), nodes=1, workers=1, out=tmp_path
    )

    async def stop_when_it_loads() -> None:
        running = asyncio.create_task(swarm.run())
        await asyncio.to_thread(until, (tmp_path / "loading-0").exists)
        swarm.stop()
        await running

    asyncio.run(asyncio.wait_for(stop_when_it_loads(), DEADLINE))
    assert not any(psutil.pid_exists(pid) for pid in swarm.pids)
    assert swarm.slots[0].round == 0


# -- killed processes ------------------------------------------------------------------------------------------


def test_a_worker_that_is_killed_ends_the_swarm_in_one_line(tmp_path: Path) -> None:
    with processes(tmp_path, preloaded=True) as start:
        process = start("pfl_node", *endless(workers=2))
        until(lambda: learning(tmp_path / "out", 3), process)
        children = family(process)
        children[0].kill()
        assert process.wait() == 1, process.output
        last = process.output.splitlines()[-1]
        assert last.startswith("pfl-node: the worker of node-00")
        assert last.endswith(f"(process {children[0].pid}) was killed by SIGKILL")
        assert "Traceback" not in process.output
        until(lambda: all_gone(children))


def test_when_the_parent_is_killed_the_workers_end_by_themselves(tmp_path: Path) -> None:
    with processes(tmp_path, preloaded=True) as start:
        process = start("pfl_node", *endless())
        until(lambda: learning(tmp_path / "out", 3), process)
        children = family(process)
        process.popen.kill()
        process.wait()
        until(lambda: all_gone(children))
    assert len(list((tmp_path / "out").glob("nodes/*/model.safetensors"))) == 3


def test_when_the_parent_is_killed_a_worker_does_not_finish_its_imports_first(tmp_path: Path) -> None:
    with processes(tmp_path) as start:
        process = start("pfl_node", "demo", "-n", 2, "--out", "out")
        process.says("importing torch")
        children = family(process)
        process.popen.kill()
        process.wait()
        until(lambda: all_gone(children))


# -- mistakes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("function", "why"), [("broken", "division by zero"), ("tired", "pop from empty list")])
def test_a_task_with_an_error_is_one_line(function: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text(TASK)
    words = ("swarm", "-n", 3, "--workers", 1, "--rounds", 50, "--policy", "local", "--no-live")
    done = preloaded_command(*words, "--task", f"task.py:{function}", cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    line = [line for line in done.stderr.splitlines() if line.startswith("pfl-node: ")]
    assert len(line) == 1, done.stderr
    assert line[0].startswith(f"pfl-node: task task.py:{function} failed (task.py, line ")
    assert why in line[0]


def test_a_directory_with_an_earlier_swarm_is_refused(tmp_path: Path) -> None:
    (tmp_path / "nodes").mkdir()
    done = own_process_command("swarm", "-n", 2, "--out", tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "holds an earlier run" in done.stderr


# -- to the end ------------------------------------------------------------------------------------------------


def test_a_demo_of_the_users_own_task_is_plain_text_with_a_comparison(tmp_path: Path) -> None:
    """Also: more workers than nodes, and a task that prints."""
    (tmp_path / "task.py").write_text(TASK)
    words = ("demo", "-n", 2, "--workers", 5, "--rounds", 3, "--policy", "el", "--task", "task.py:small")
    done = preloaded_command(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert "2 nodes ready after" in done.stdout
    assert "test accuracy  nodes" in done.stdout
    assert " alone " in done.stdout
    assert "upside down" not in done.stdout
    assert set(done.stderr.splitlines()) == {"the task says hello"}
    assert sorted(p.name for p in tmp_path.iterdir() if p.name != "__pycache__") == ["task.py"]


def test_a_demo_of_one_node_ends(tmp_path: Path) -> None:
    done = preloaded_command("demo", "-n", 1, "--rounds", 2, "--no-live", *fast(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "pens on digits: 1 node, 2 rounds" in done.stdout
    assert done.stderr == ""
