"""The pool of worker processes, with workers whose behaviour depends on the task's name."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from pfl_node.settings import Settings, TaskSettings
from pfl_node.sim.sim_worker import RunOrder
from pfl_node.sim.worker_process import Message, run_all

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def in_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


FAILING = "tests.unit.sim.failing_worker"


def orders(*tasks: str) -> list[RunOrder]:
    return [RunOrder(Settings(rounds=1, task=TaskSettings(name=task)), nodes=1) for task in tasks]


def test_answers_come_in_the_order_of_the_orders_and_a_dead_worker_is_replaced() -> None:
    found = run_all(orders("a", "die", "kill", "b", "c"), 2, lambda number, message: None, FAILING)
    assert [said.get("summary") or said["why"] for said in found] == [
        "a",
        "its process exited with code 3",
        "its process was killed by SIGKILL",
        "b",
        "c",
    ]


def test_ctrl_c_leaves_no_process_behind() -> None:
    pids: list[int] = []

    def stop(number: int, message: Message) -> None:
        pids.append(message["pid"])
        if len(pids) == 2:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run_all(orders("hang", "hang", "a"), 2, stop, FAILING)
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_an_order_is_the_same_at_the_other_end() -> None:
    task = TaskSettings.model_validate({"name": "digits", "angles": [0], "alpha": 0.1})
    order = RunOrder(Settings(rounds=2, task=task), 7, ("loss:0.1", "crash:n003@2"), Path("x/y"))
    assert RunOrder.load(order.dump()) == order
