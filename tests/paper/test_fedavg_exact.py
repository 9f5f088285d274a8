"""`fedavg` on many nodes against FederatedAveraging with a server in one loop: the same learners and
training seeds give the same models, in the simulator and over gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pfl_node.learning.learner import Learner
from pfl_node.learning.task import Place
from pfl_node.learning.tasks import load_task
from pfl_node.model import Model
from pfl_node.node.ports import Plan
from pfl_node.policies import configure, load_policy
from pfl_node.policies.topology import sample
from pfl_node.seeds import seed_from
from pfl_node.settings import Settings
from pfl_node.sim.event_journal import EventJournal
from pfl_node.sim.faults import node_ids
from pfl_node.sim.learner_port import learners_of
from pfl_node.sim.simulation import Simulation
from pfl_node.types import PeerId
from tests.e2e.in_process import Town, play

NODES, ROUNDS = 5, 3
IID = {"angles": [0], "samples": 40}
SKEWED = {"angles": [0], "alpha": 1.0}  # the nodes have different numbers of samples

fractions = pytest.mark.parametrize("part", [1.0, 0.4])


def settings_of(policy: str, task: Mapping[str, Any], **knobs: Any) -> Settings:
    return Settings.model_validate(
        {"rounds": ROUNDS, "seed": 3, "device": "cpu", "policy": {"name": policy, **knobs}, "task": dict(task)}
    )


def federated_averaging(settings: Settings, ids: Sequence[PeerId], part: float, prox: float = 0.0) -> Model:
    """McMahan et al. 2017, Algorithm 1, literally: a server, K clients, one loop."""
    seed = settings.seed
    clients = {k: learner(settings, index, k) for index, k in enumerate(ids)}
    trainings = dict.fromkeys(ids, 0)
    w = clients[ids[0]].fresh(seed_from(seed, "fresh", 0))
    for t in range(ROUNDS):
        chosen = sample(ids, fraction=part, seed=seed, round=t)
        n = sum(clients[k].samples for k in chosen)
        total = np.zeros(w.layout.size, np.float64)
        for k in chosen:
            trainings[k] += 1
            update = clients[k].train(w, seed=seed_from(seed, k, t, "train", trainings[k]), prox=prox)
            total += clients[k].samples / n * update.vector
        w = Model(w.layout, total.astype(np.float32))
    return w


def learner(settings: Settings, index: int, id: PeerId) -> Learner:
    place = Place(index=index, nodes=NODES, seed=settings.seed, node_id=id)
    return Learner(load_task(settings.task, place), settings.train, settings.device)


def simulated(settings: Settings) -> dict[PeerId, Model]:
    policy = load_policy(settings.policy.name)
    plan = Plan(policy, configure(policy, settings.policy.options))
    load = learners_of(settings, NODES)
    swarm = Simulation(settings, plan, load, nodes=NODES, journal=EventJournal(None))
    swarm.run()
    return {id: node.policy.model for id, node in swarm.world.nodes.items()}


def same_bits(models: Mapping[PeerId, Model]) -> Model:
    first, *others = models.values()
    assert all(first == other for other in others)
    return first


def far(a: Model, b: Model) -> float:
    return float(np.abs(a.vector - b.vector).max())


@fractions
@pytest.mark.parametrize("task", [IID, SKEWED], ids=["iid", "skewed"])
def test_in_the_simulator_it_is_federated_averaging_with_a_server(part: float, task: Mapping[str, Any]) -> None:
    settings = settings_of("fedavg", task, C=part)
    found = same_bits(simulated(settings))
    expected = federated_averaging(settings, node_ids(NODES), part)
    assert far(found, expected) < 1e-6
    assert far(found, learner(settings, 0, PeerId("x")).fresh(seed_from(3, "fresh", 0))) > 0.1  # it has learned


def test_fedprox_differs_from_fedavg_unless_mu_is_zero() -> None:
    avg = same_bits(simulated(settings_of("fedavg", IID, C=0.4)))
    assert same_bits(simulated(settings_of("fedprox", IID, C=0.4, mu=0.0))) == avg
    held = settings_of("fedprox", IID, C=0.4, mu=0.5)
    prox = same_bits(simulated(held))
    assert far(prox, avg) > 1e-3
    assert far(prox, federated_averaging(held, node_ids(NODES), 0.4, prox=0.5)) < 1e-6


@fractions
def test_over_real_grpc_it_is_federated_averaging_with_a_server(part: float, tmp_path: Path) -> None:
    settings = settings_of("fedavg", SKEWED, C=part)
    models: dict[PeerId, Model] = {}

    async def scene(town: Town) -> None:
        seed = await town.listens("n0", **ours(settings, 0))
        others = [
            await town.listens(f"n{i}", peer_seed=(seed.address,), **ours(settings, i)) for i in range(1, NODES)
        ]
        lives = [seed, *others]
        for life in lives:
            life.begin()
        assert await asyncio.gather(*(life.ends() for life in lives)) == ["done"] * NODES
        for life in lives:
            assert life.node.policy
            models[life.node.id] = life.node.policy.model

    play(tmp_path, scene)
    assert far(same_bits(models), federated_averaging(settings, list(models), part)) < 1e-6


def ours(settings: Settings, index: int) -> dict[str, Any]:
    """The settings of one of the nodes, which start when all have joined."""
    told = settings.model_dump(include={"rounds", "seed", "device", "policy"})
    task = {**settings.task.options, "index": index, "nodes": NODES}
    return {**told, "task": task, "start": {"peers": NODES - 1, "wait": 60}}
