"""Trackers get every round of a simulation and of a daemon; one that fails costs a warning and nothing else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pfl_node.daemon import process
from pfl_node.errors import ConfigError
from pfl_node.settings import Settings
from pfl_node.sim import simulate
from pfl_node.tracking.tracking import Tracking, check_track, report_of
from tests.toy import ToyLearner

CALLED = """
SEEN = []

def on_round(report):
    SEEN.append(report)

def broken(report):
    raise ValueError("no room\\nat all")
"""


@pytest.fixture(autouse=True)
def time_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """No tracker writes after its test, even on a busy machine."""
    monkeypatch.setattr("pfl_node.tracking.tracking.GRACE", 300.0)


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(CALLED)
    return tmp_path / "mine.py"


def seen(mine: Path) -> Any:
    from pfl_node import plugin

    return plugin.load("test", f"{mine}:SEEN", ConfigError)


def simulated(track: dict[str, Any], rounds: int = 3, nodes: int = 2, **options: Any) -> None:
    settings = Settings.model_validate({"policy": {"name": "el"}, "rounds": rounds, "track": track})
    simulate(settings, nodes=nodes, load=lambda *_: ToyLearner(), **options)


def test_a_function_is_called_with_every_round_of_every_node(mine: Path) -> None:
    simulated({"call": f"{mine}:on_round"})
    reports = seen(mine)
    rounds = [(r.node, r.round) for r in reports if r.event == "round"]
    assert sorted(rounds) == [(node, t) for node in ("n000", "n001") for t in range(3)]
    assert {r.node for r in reports if r.event == "finished"} == {"n000", "n001"}
    assert all(r.figures["test_loss"] == r.data["test_loss"] for r in reports)


def test_only_the_first_nodes_of_a_large_simulation_are_tracked(mine: Path) -> None:
    simulated({"call": f"{mine}:on_round", "nodes": 2}, rounds=1, nodes=4)
    assert {r.node for r in seen(mine)} == {"n000", "n001"}


def test_a_run_in_segments_is_tracked_as_one(mine: Path, tmp_path: Path) -> None:
    simulated({"call": f"{mine}:on_round"}, nodes=1, rounds=4, segment=2, out=tmp_path / "out")
    assert [r.round for r in seen(mine) if r.event == "round"] == [0, 1, 2, 3]


def test_a_tracker_that_fails_costs_one_warning_and_no_round(mine: Path, caplog: pytest.LogCaptureFixture) -> None:
    simulated({"call": f"{mine}:broken"}, nodes=1)
    [line] = caplog.messages
    assert line == ("tracking of n000 with call failed; training goes on: ValueError: no room (mine.py, line 8)")


def test_tensorboard_gets_the_curves_of_each_node(tmp_path: Path, mine: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    simulated({"tensorboard": tmp_path, "call": f"{mine}:on_round"})
    events = accumulator.EventAccumulator(str(tmp_path / "default" / "n001"))
    events.Reload()
    found = events.Scalars("test_loss")
    told = [r for r in seen(mine) if r.node == "n001" and "test_loss" in r.figures]
    assert [(e.step, e.value) for e in found] == [(r.round, pytest.approx(r.figures["test_loss"])) for r in told]


@pytest.fixture
def file_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests use MLflow's files; a database or a server needs the whole package."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")


def test_a_function_that_the_file_lacks_is_reported_before_the_start(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("from os import path as other\nif True:\n    def on_round(report): ...\nlater = other\n")
    for name in ("on_round", "other", "later"):
        check_track(Settings.model_validate({"track": {"call": f"{file}:{name}"}}))
    with pytest.raises(ConfigError, match="there is no 'on_rund'; did you mean 'on_round'"):
        check_track(Settings.model_validate({"track": {"call": f"{file}:on_rund"}}))


@pytest.mark.usefixtures("file_store")
def test_mlflow_gets_a_run_for_each_node_with_its_parameters(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    uri = f"file:{tmp_path / 'mlruns'}"
    simulated({"mlflow": uri})
    client = mlflow.MlflowClient(tracking_uri=uri)
    runs = client.search_runs([client.get_experiment_by_name("default").experiment_id])
    assert {run.info.run_name: run.info.status for run in runs} == {"n000": "FINISHED", "n001": "FINISHED"}
    assert runs[0].data.params["policy.name"] == "el"
    assert [m.step for m in client.get_metric_history(runs[0].info.run_id, "test_loss")][:3] == [0, 1, 2]


@pytest.fixture
def service() -> Iterator[None]:
    """W&B's own process ends with the test."""
    wandb = pytest.importorskip("wandb")
    yield
    wandb.teardown()


@pytest.mark.usefixtures("service")
def test_wandb_writes_an_offline_run_for_each_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    simulated({"wandb": "hospitals", "wandb_offline": True})
    files = list((tmp_path / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(files) == 2
    assert all(file.stat().st_size for file in files)


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_a_missing_package_is_reported_before_the_start(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pfl_node.tracking.tracking.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=rf"track\.{name} needs a package: pip install 'pfl-node\[{name}\]'"):
        check_track(Settings.model_validate({"track": {name: "x"}}))


@pytest.mark.parametrize(("call", "text"), [("mine", "name a function"), ("no.py:f", "there is no file no.py")])
def test_a_wrong_function_is_reported_before_the_start(call: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        check_track(Settings.model_validate({"track": {"call": call}}))


@pytest.mark.usefixtures("file_store")
def test_a_daemon_tracks_its_rounds_and_a_restart_continues_its_run(tmp_path: Path, mine: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    uri = f"file:{tmp_path / 'mlruns'}"

    def run(rounds: int) -> None:
        settings = {
            "policy": {"name": "local"},
            "task": {"samples": 20},
            "data_dir": tmp_path / "node",
            "rounds": rounds,
            "log": {"level": "error"},
            "track": {"mlflow": uri, "call": f"{mine}:on_round"},
        }
        assert asyncio.run(process._run(Settings.model_validate(settings))) == 0

    run(1)
    run(3)
    client = mlflow.MlflowClient(tracking_uri=uri)
    [found] = client.search_runs([client.get_experiment_by_name("default").experiment_id])
    steps = {m.step for m in client.get_metric_history(found.info.run_id, "test_loss")}
    assert {0, 1, 2} <= steps
    identity = json.loads((tmp_path / "node" / "identity.json").read_text())["id"]
    assert {r.node for r in seen(mine)} == {identity}
    assert [r.round for r in seen(mine) if r.event == "round"] == [0, 1, 2]


def test_secrets_are_not_tracked() -> None:
    settings = Settings.model_validate({"task": {"name": "a:b", "token": "hush", "folder": "/data/ward"}})
    tracking = Tracking(settings.model_copy(update={"track": settings.track.model_copy(update={"call": "a:b"})}))
    tracking.observer("n", "n")
    assert "hush" not in str(tracking._runs["n"][0].node.parameters)


def test_figures_are_the_finite_numbers_of_a_row() -> None:
    row = {"round": 4, "loss": 1, "nan": float("nan"), "flag": True, "text": "x", "from": ["a"], "acc": 0.5}
    report = report_of("id", "name", "round", row)
    assert (report.round, dict(report.figures)) == (4, {"loss": 1.0, "acc": 0.5})
    assert report.data == row
