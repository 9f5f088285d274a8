"""The Python API as a program uses it: simulate, Node, swarm, load."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from structlog.testing import capture_logs
from torch import nn

import pfl_node
from pfl_node import Node, RoundReport, load, simulate
from pfl_node.errors import ConfigError
from pfl_node.policies.el import El

QUICK: dict[str, Any] = {
    "start": {"wait": 20},
    "membership": {"probe_interval": 0.5, "probe_timeout": 0.25, "gossip_interval": 0.05, "sync_interval": 1.0},
}


def ward(index: int | None = None, hidden: int = 8) -> dict[str, Any]:
    """Three classes that a small model can tell apart."""
    rng = np.random.default_rng(index or 0)
    y = rng.integers(0, 3, 90)
    x = rng.normal(3 * np.eye(3)[y], 1.0).astype("float32")
    model = lambda: nn.Sequential(nn.Linear(3, hidden), nn.ReLU(), nn.Linear(hidden, 3))  # noqa: E731
    return {"model": model, "train": (x[:70], y[:70]), "test": (x[70:], y[70:]), "cluster": (index or 0) % 2}


# -- simulate --------------------------------------------------------------------------------------------------


def test_a_simulation_of_a_function_gives_table_frame_and_models() -> None:
    reports: list[RoundReport] = []
    result = simulate(ward, "el", nodes=4, rounds=3, seed=1, train={"lr": 0.1}, on_round=reports.append)
    assert sorted((r.node, r.round) for r in reports) == [(f"n00{n}", t) for n in range(4) for t in range(3)]
    lines = result.table().splitlines()
    assert lines == str(result).splitlines()
    assert lines[0].split() == ["node", "cluster", "rounds", "accuracy", "loss", "MB", "sent"]
    assert [line.split()[0] for line in lines[1:]] == ["n000", "n001", "n002", "n003", "mean"]
    frame = result.frame()
    assert list(frame.columns[:2]) == ["node", "round"]
    assert len(frame) == 12
    assert result.accuracy == pytest.approx(frame[frame["round"] == 2]["test_accuracy"].mean())


def test_the_models_of_a_simulation_are_the_ones_that_were_measured() -> None:
    result = simulate({"name": ward, "hidden": 5}, nodes=2, rounds=2)
    assert list(result.models) == ["n000", "n001"]
    for index, record in enumerate(result.nodes):
        module = result.models[record.id]
        assert not module.training
        assert module is result.models[record.id]
        x, y = ward(index, 5)["test"]
        with torch.no_grad():
            right = (module(torch.tensor(x)).argmax(1).numpy() == y).mean()
        assert right == pytest.approx(record.accuracy)


def test_the_same_arguments_give_the_same_result() -> None:
    first, second = (simulate(ward, El, nodes=3, rounds=2, seed=4) for _ in range(2))
    assert first.rounds == second.rounds


def normalised() -> dict[str, Any]:
    """A number among its tensors: how many batches its normalisation has seen."""
    model = lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).double()  # noqa: E731
    return {**ward(), "model": model}


def test_a_notebook_simulates_beside_its_event_loop() -> None:
    async def cell() -> pfl_node.RunResult:
        return simulate(normalised, "el", nodes=2, rounds=2)

    inside, outside = asyncio.run(cell()), simulate(normalised, "el", nodes=2, rounds=2)
    assert inside.rounds == outside.rounds
    assert inside.models["n001"](torch.zeros(4, 3)).shape == (4, 3)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"nodes": 0}, r"bad value 0 for 'nodes' in simulate\(\): must be a whole number above 0"),
        ({"jobs": 0}, "bad value 0 for 'jobs'"),
        ({"jobs": 2, "segment": 3}, "unknown setting 'segment'"),
        ({"trian": {"lr": 1}}, r"unknown setting 'trian' in simulate\(\)"),
        ({"train": {"lr": -1}}, r"bad value -1 for 'train.lr' in simulate\(\): must be a number above 0"),
        ({"policy": "ell"}, "unknown policy 'ell'"),
        ({"task": {"name": ward, "hiden": 3}}, "has no option 'hiden'"),
        ({"faults": ["crash:n009@1"]}, "n009"),
        ({"jobs": 2, "task": lambda: None}, "put it at the top level of a file"),
        ({"track": {"call": "mine"}}, "name a function"),
    ],
)
def test_a_mistake_is_one_line(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        simulate(**{"task": ward, "nodes": 2, "rounds": 1, **given})
    assert "\n" not in str(caught.value)


# -- Node ------------------------------------------------------------------------------------------------------


def test_two_nodes_learn_together_in_one_event_loop(tmp_path: Path) -> None:
    rounds: list[tuple[str, int]] = []

    async def go() -> None:
        first = Node(ward, "el", rounds=4, data_dir=tmp_path / "a", name="a", **QUICK)
        address = await first.start()
        second = Node(
            ward,
            "el",
            [address],
            lambda report: rounds.append((report.event, report.round)),
            rounds=4,
            data_dir=tmp_path / "b",
            name="b",
            **QUICK,
        )
        async with asyncio.timeout(90):
            assert tuple(await asyncio.gather(first.run(), second.run())) == ("done", "done")
        assert (first.state, first.round) == ("done", 4)
        status = first.status()
        assert sum(status["models_received"].values()) >= 1
        assert (status["state"], status["round"]) == ("done", 4)
        with pytest.raises(RuntimeError, match="this node has ended: make a new Node"):
            await first.run()  # as when a cell of a notebook is run again
        assert first.model().training is False

    asyncio.run(go())
    assert rounds == [("round", t) for t in range(4)] + [("finished", 4)]
    assert (tmp_path / "a").stat().st_mode & 0o077 == 0
    loaded = load(tmp_path / "b", task=ward)
    assert loaded(torch.zeros(2, 3)).shape == (2, 3)


def test_on_round_may_stop_the_node_and_its_errors_do_not(tmp_path: Path) -> None:
    def on_round(report: RoundReport) -> None:
        if report.round >= 2:
            node.stop()
        raise ValueError("not my day")

    node = Node(ward, "local", on_round=on_round, data_dir=tmp_path / "a")
    with capture_logs() as logs:
        assert node.run_blocking() == "stopped"
    assert any(entry["event"].startswith("on_round failed") for entry in logs)
    assert node.round >= 2
    assert node.address


def test_ctrl_c_stops_the_node_while_it_runs_and_the_program_afterwards(tmp_path: Path) -> None:
    def on_round(_: RoundReport) -> None:
        signal.raise_signal(signal.SIGINT)

    assert Node(ward, "local", on_round=on_round, data_dir=tmp_path / "a").run_blocking() == "stopped"
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_a_loop_that_is_running_needs_await(tmp_path: Path) -> None:
    async def go() -> None:
        node = Node(ward, "local", rounds=1, data_dir=tmp_path)
        with pytest.raises(RuntimeError, match=r"use `await node\.run"):
            node.run_blocking()

    asyncio.run(go())


def test_a_node_checks_its_settings_before_it_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown setting 'trian' in Node\(\)"):
        Node(ward, trian={"lr": 1})
    with pytest.raises(ConfigError, match="policy oracle needs the true clusters"):
        Node(ward, "oracle")
    with pytest.raises(ConfigError, match="peer_seed"):
        Node(ward, peers=["nowhere"])
    assert not any(tmp_path.iterdir())


# -- swarm -----------------------------------------------------------------------------------------------------

SCRIPT = """
import sys
from pfl_node import swarm, load
import numpy as np
from torch import nn


def ward(index=0):
    rng = np.random.default_rng(index)
    y = rng.integers(0, 3, 60)
    return {"model": lambda: nn.Linear(3, 3), "train": (rng.normal(np.eye(3)[y], 1.0).astype("float32"), y)}


if __name__ == "__main__":
    result = swarm(ward, "el", nodes=3, rounds=2, workers=1)
    print(result.table())
    print(len(result.frame()), result.models["node-002"])
    from pfl_node import swarm  # the package, now that it is imported
    try:
        swarm(lambda: 1)
    except Exception as error:
        print(error)
"""


def test_a_script_runs_a_swarm_of_its_own_function(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    root = Path(pfl_node.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env={"PYTHONPATH": str(root), "TMPDIR": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines[1:5]] == ["node-000", "node-001", "node-002", "mean"]
    assert lines[5] == "6 Linear(in_features=3, out_features=3, bias=True)"
    assert "put it at the top level of a file" in lines[6]
    assert not list(tmp_path.glob("pfl-swarm-*"))  # the swarm's files are deleted with the result
