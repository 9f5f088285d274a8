"""Jobs in processes of this machine, whose behaviour depends on the task's name."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest

from pfl_node.settings import Settings, TaskSettings
from pfl_node.sim.process_executor import ProcessExecutor
from pfl_node.sim.run_jobs import Message, OnMessage, run_all
from pfl_node.sim.sim_worker import RunOrder
from tests.unit.sim import failing_jobs


def orders(*tasks: str, out: Path | None = None) -> list[RunOrder]:
    return [RunOrder(Settings(rounds=1, task=TaskSettings(name=task)), nodes=1, out=out) for task in tasks]


def run(
    scratch: Path,
    *tasks: str,
    workers: int = 1,
    on_message: OnMessage = lambda *_: None,
    attempts: int = 1,
    **how: float,
) -> list[Message]:
    with ProcessExecutor(workers, reuse=not how, grace=how.get("grace", 0.0)) as executor:
        wanted = orders(*tasks, out=scratch / "out")
        return run_all(failing_jobs.run, wanted, executor, scratch, on_message, attempts=attempts)


def gone(pids: list[int]) -> bool:
    left = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    return not psutil.wait_procs(left, timeout=10)[1]


def test_answers_come_in_the_order_of_the_orders_and_a_dead_process_is_replaced(tmp_path: Path) -> None:
    found = run(tmp_path, "a", "die", "kill", "b", "mistake", "failure", workers=2)
    assert [said.get("summary") or said["why"] for said in found] == [
        "a",
        "its process exited with code 3",
        "its process was killed by SIGKILL",
        "b",
        "your task",
        "our failure",
    ]
    assert [said.get("mistake") for said in found] == [None, False, False, None, True, False]
    assert not list(tmp_path.glob("*.json"))


def test_a_job_whose_process_dies_is_tried_again_and_the_loss_is_told(tmp_path: Path) -> None:
    heard: list[tuple[int, Message]] = []
    found = run(tmp_path, "die once", "a", attempts=2, on_message=lambda *message: heard.append(message))
    assert [said["event"] for said in found] == ["done", "done"]
    assert [(n, m["why"]) for n, m in heard if m["event"] == "lost"] == [(0, "its process exited with code 3")]


def test_ctrl_c_leaves_no_process_behind_not_even_one_that_a_job_started(tmp_path: Path) -> None:
    pids: list[int] = []

    def stop(number: int, message: Message) -> None:
        pids.extend(message["pids"])
        if len(pids) == 4:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, "hang", "hang", "a", workers=2, on_message=stop)
    assert len(pids) == 4
    assert gone(pids)


def test_a_job_with_time_for_it_ends_in_order(tmp_path: Path) -> None:
    pids: list[int] = []

    def stop(number: int, message: Message) -> None:
        pids.extend(message["pids"])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, "end in order", on_message=stop, grace=30.0)
    assert gone(pids)
    assert (tmp_path / "out").exists()


def test_jobs_share_a_process_unless_each_shall_have_its_own(tmp_path: Path) -> None:
    one, two = (said["summary"] for said in run(tmp_path, "environment", "environment"))
    assert one == two
    assert one[0] == "1"
    three, four = (said["summary"] for said in run(tmp_path, "environment", "environment", grace=0.01))
    assert three != four


def test_what_a_job_prints_is_shown_on_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, "print")
    out, err = capsys.readouterr()
    assert out == ""
    assert sorted(err.splitlines()) == ["logged", "printed"]


def test_an_order_is_the_same_at_the_other_end() -> None:
    task = TaskSettings.model_validate({"name": "digits", "angles": [0], "alpha": 0.1})
    order = RunOrder(Settings(rounds=2, task=task), 7, ("loss:0.1", "crash:n003@2"), Path("x/y"))
    assert RunOrder.load(order.dump()) == order
