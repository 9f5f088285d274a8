"""Every shipped policy works with models of which a part stays on the node."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pfl_node.errors import ConfigError
from pfl_node.learning.learner import Learner
from pfl_node.model import LocalState
from pfl_node.node.ports import Plan
from pfl_node.policies import POLICIES, configure
from pfl_node.settings.load import load_settings
from pfl_node.sim.event_journal import EventJournal
from pfl_node.sim.faults import node_ids, parse_faults
from pfl_node.sim.learner_port import learners_of
from pfl_node.sim.node_process import Process
from pfl_node.sim.simulate import simulate
from pfl_node.sim.simulation import Simulation
from pfl_node.testing.contract.small_config import small
from pfl_node.wire.codec import misfit
from tests.e2e.preloaded import PreloadedWorker
from tests.unit.sim import local_parts

TASKS = Path(local_parts.__file__)
# The numbers that travel, of each task.
NUMBERS = {"fedbn": 58, "frozen": 90, "linear_probe": 18, "lora": 44, "scaler": 10, "everything": 106}
WITH_PARAMETERS = ("fedbn", "everything")  # tasks whose private part has some
NODES = 3


def ran(folder: Path, task: str, policy: str, **given: Any) -> list[Process]:
    told = {"rounds": 2, "task.name": f"{TASKS}:{task}", "policy.name": policy, **given}
    settings = load_settings(overrides=told)
    cls = POLICIES[policy]
    plan = Plan(cls, configure(cls, {**small(cls), **settings.policy.options}))
    with EventJournal(folder / "journal.jsonl") as journal:
        swarm = Simulation(settings, plan, learners_of(settings, NODES), nodes=NODES, journal=journal)
        swarm.run()
    return list(swarm.world.nodes.values())


def private(node: Process) -> dict[str, Any]:
    """The tensors of a node's personal model that are not part of what travels."""
    learner: Any = node.learner
    assert isinstance(learner, Learner)
    state = node.node and node.node.trainer.state
    assert isinstance(state, LocalState)
    travels = {entry.name for entry in learner.layout.entries}
    return {n: t for n, t in learner.tensors(node.policy.model, state).items() if n not in travels}


QUICK = ("el", "facade", "deprl", "feded", "pens")


@pytest.mark.parametrize(
    ("task", "policy"),
    [
        pytest.param(task, policy, marks=() if task == "everything" or policy in QUICK else pytest.mark.slow)
        for task in NUMBERS
        for policy in POLICIES
        if task not in WITH_PARAMETERS or not POLICIES[policy].only_gradients
    ],
)
def test_a_model_with_parts_that_stay_works_with_every_policy(tmp_path: Path, task: str, policy: str) -> None:
    nodes = ran(tmp_path, task, policy)
    assert all(node.state == "left" for node in nodes)
    assert all(node.learner.layout.size == NUMBERS[task] for node in nodes)
    assert all(node.policy.model.layout == nodes[0].learner.layout for node in nodes)
    for index, node in enumerate(nodes):
        if task in ("scaler", "everything"):
            own = local_parts.data(index, 1, 100.0 * index).x.mean(0).numpy()
            np.testing.assert_allclose(private(node)["scaler.mean"], own)
            accuracy = node.summary().accuracy
            assert accuracy is not None
            assert accuracy > 0.7 or policy == "feded"  # its auxiliary samples are in the units of one site
    if task in WITH_PARAMETERS:
        means = [private(node)["bn1.running_mean"].tolist() for node in nodes]
        assert len({tuple(mean) for mean in means if any(mean)}) >= 2  # fedavg may not select each node


def test_gradient_tracking_refuses_to_leave_private_parameters_untrained(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"bn1\.weight of task .*:fedbn is private: leave out") as refused:
        ran(tmp_path, "fedbn", "gradient_tracking")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "given",
    [
        {"guard.gate": 0.5, "guard.outliers": 6.0},
        {"attack.kind": ("sign_flip",), "attack.share": 0.34},
        {"aggregate.rule": "median"},
        {"wire.encoding": "int8"},
    ],
    ids=lambda given: next(iter(given)),
)
def test_guard_attacks_and_encodings_see_only_what_travels(tmp_path: Path, given: dict[str, Any]) -> None:
    nodes = ran(tmp_path, "fedbn", "el", **given)
    assert all(node.state == "left" for node in nodes)


def journal(out: Path, task: str, *, jobs: int = 1, segment: int | None = None) -> bytes:
    told = {"rounds": 4, "task.name": f"{TASKS}:{task}", "policy.name": "el", "store.checkpoint_every": 1}
    faults = parse_faults(() if segment else ("crash:n001@0.8", "restart:n001@1.2"), node_ids(NODES))
    simulate(load_settings(overrides=told), nodes=NODES, out=out, jobs=jobs, segment=segment, faults=faults)
    return (out / "journal.jsonl").read_bytes()


def test_worker_processes_get_and_return_the_private_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pfl_node.sim.job_pool.Popen", PreloadedWorker)
    assert journal(tmp_path / "two", "fedbn", jobs=2) == journal(tmp_path / "one", "fedbn")


def test_a_run_in_segments_keeps_the_private_part(tmp_path: Path) -> None:
    assert journal(tmp_path / "two", "fedbn", segment=2) == journal(tmp_path / "one", "fedbn", segment=4)


def test_peers_with_another_base_model_are_refused_by_name(tmp_path: Path) -> None:
    told = {"rounds": 2, "task.name": f"{TASKS}:other_base", "policy.name": "el"}
    simulate(load_settings(overrides=told), nodes=2, out=tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "journal.jsonl").read_text().splitlines()]
    refused = [row for row in rows if row.get("reason") == "layout"]
    assert refused
    learners = [learners_of(load_settings(overrides=told), 2)(i, node_ids(2)[i]) for i in range(2)]
    text = misfit(learners[1].layout.digest, learners[0].layout).text
    assert text == "this model does not fit: frozen parameters differ: another base model"
