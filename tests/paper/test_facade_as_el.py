"""`facade` and `el` in the simulator, with the same seeds: Trinca 2024, sections 4.2.3, 4.3 and 4.4."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pfl_node.model import Model
from pfl_node.settings import Settings, WireSettings
from pfl_node.sim.outcome import Summary
from pfl_node.sim.simulate import simulate
from pfl_node.sim.simulation import Simulation
from pfl_node.types import Envelope, PeerId
from pfl_node.wire.codec import encode
from pfl_node.wire.framing import ALIGNMENT
from tests.drive_policy import model

NODES, ROUNDS, SAMPLES = 6, 8, 40


def run(policy: str, batch: int = 8, **knobs: Any) -> tuple[Summary, dict[PeerId, Model]]:
    """The summary and each node's personal model at the end."""
    models: dict[PeerId, Model] = {}

    def keep(swarm: Simulation) -> None:
        models.update({id: node.policy.model for id, node in swarm.world.nodes.items()})

    told = {
        "rounds": ROUNDS,
        "seed": 3,
        "device": "cpu",
        "policy": {"name": policy, "degree": 3, "all_reduce": True, **knobs},
        "task": {"name": "digits", "sizes": [4, 2], "samples": SAMPLES},
        "train": {"steps": 5, "batch": batch},
    }
    return simulate(Settings.model_validate(told), nodes=NODES, ended=keep), models


def distance(a: dict[PeerId, Model], b: dict[PeerId, Model]) -> float:
    """The largest difference of two numbers, over all nodes."""
    return max(float(np.abs(a[id].vector - b[id].vector).max()) for id in a)


@pytest.mark.parametrize("warmup", [0, 2])
def test_with_one_head_it_is_epidemic_learning(warmup: int) -> None:
    """4.3: "When only one head is used, FACADE essentially replicated the behavior of EL". A batch is all of a
    node's samples, because scoring the head takes one of the node's seeds, so that later batches differ."""
    _, expected = run("el", batch=SAMPLES)
    _, found = run("facade", batch=SAMPLES, k=1, warmup=warmup)
    assert distance(found, expected) < 1e-6  # the order of the samples changes the last bits of a gradient
    _, two = run("facade", batch=SAMPLES, k=2, warmup=warmup)
    assert distance(two, expected) > 1e-2


@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_warm_up_is_epidemic_learning_bit_for_bit(k: int) -> None:
    """4.4: "a few rounds of EL, where all heads share the same weights"."""
    assert run("facade", k=k, warmup=ROUNDS)[1] == run("el")[1]


@pytest.mark.parametrize("k", [1, 2, 3])
def test_it_sends_as_many_models_and_bytes_as_epidemic_learning(k: int) -> None:
    """4.2.3: "Each node still sends only one model", however many heads it has."""
    (facade, _), (el, _) = run("facade", k=k, warmup=0), run("el")
    sent = {n.id: (n.models_sent, n.bytes_sent) for n in facade.nodes}
    assert sent == {n.id: (n.models_sent, n.bytes_sent) for n in el.nodes}
    assert {models for models, _ in sent.values()} == {ROUNDS * 3 + NODES - 1}


def test_the_index_of_the_head_takes_at_most_sixteen_bytes() -> None:
    """4.2.3: "with the addition of the model index". It takes two bytes, and a header is padded to a multiple of
    sixteen."""
    plain, *indexed = (message_size(tag) for tag in range(5))
    assert {size - plain for size in indexed} <= {0, ALIGNMENT}


def message_size(tag: int) -> int:
    envelope = Envelope(PeerId("n0"), "run", round=3, tag=tag, samples=SAMPLES)
    return sum(map(len, encode(model(1), envelope, WireSettings())))
