"""A node that has what several nodes of a larger swarm would have: central training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from pfl_node.errors import ConfigError
from pfl_node.learning import images
from pfl_node.learning.datasets import Dataset, Images
from pfl_node.learning.learner import Learner
from pfl_node.learning.task import Data, Place, Task
from pfl_node.learning.tasks import load_task
from pfl_node.settings import TaskSettings, TrainSettings


@pytest.fixture(autouse=True)
def small_cifar10(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = np.random.default_rng(0)
    train, test = (
        Images(chance.integers(0, 256, (n, 8, 8, 3), dtype=np.uint8), np.arange(n) % 10) for n in (400, 60)
    )
    data = Dataset("cifar10", train, test, 10)
    monkeypatch.setattr(images, "load", lambda name, root, *, size, download: data)


def place(index: int | None, nodes: int | None, **options: Any) -> Task:
    return load_task(TaskSettings(name="cifar10", **options), Place(index, nodes, 3, "me"))


def same(found: Data | None, parts: list[Data | None]) -> bool:
    known = [part for part in parts if part is not None]
    assert found is not None
    assert len(known) == len(parts)
    whole = [torch.cat([part[i] for part in known]) for i in (0, 1)]
    return torch.equal(found.x, whole[0]) and torch.equal(found.y, whole[1])


@pytest.mark.parametrize(
    "options",
    [
        {"samples": 20, "val": 5},
        {"samples": 20, "val": 5, "sizes": (6, 2)},
        {"partition": "dirichlet", "alpha": 1.0, "val": None},
    ],
    ids=str,
)
def test_one_node_has_all_that_the_nodes_of_a_swarm_have(options: dict[str, Any]) -> None:
    others = [place(i, 8, **options) for i in range(8)]
    central = place(0, 1, pooled=8, **options)
    assert same(central.train, [other.train for other in others])
    assert same(central.val, [other.val for other in others])
    assert same(central.test, [others[0].test, others[-1].test])
    assert central.cluster is None
    assert {other.cluster for other in others} == {0, 1}


def test_two_nodes_have_a_cluster_each() -> None:
    others = [place(i, 8, samples=20, val=5) for i in range(8)]
    for index in (0, 1):
        mine = others[4 * index : 4 * index + 4]
        central = place(index, 2, pooled=4, samples=20, val=5)
        assert same(central.train, [other.train for other in mine])
        assert same(central.test, [mine[0].test])
        assert central.cluster == index


def test_without_validation_images_it_looks_at_some_of_every_place() -> None:
    central = place(0, 1, pooled=2, val=0)
    assert central.val is not None
    assert same(central.val, [Data(part.x[:100], part.y[:100]) for part in (place(i, 2).train for i in (0, 1))])


def test_it_learns_and_is_measured_on_every_cluster_without_a_copy_of_its_images() -> None:
    central = place(0, 1, pooled=8, samples=20, val=5, model="mnist_2nn", tests=20)
    me = Learner(central, TrainSettings(steps=2), "cpu")
    assert me.score([me.train(me.fresh(0), seed=0)], split="test")[0].samples == 40
    assert central.train.x.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("index", "nodes", "pooled", "text"),
    [
        (0, 1, 0, "task.pooled = 0 is not a whole number from 1 on"),
        (0, 1, "all", "task.pooled = 'all' is not a whole number"),
        (None, None, 2, "say which ones these are, task.index, and how many nodes there are, task.nodes"),
        (1, None, 2, "task.pooled = 2 joins the images of 2 places"),
        (0, 2, 300, "400 samples are too few for 600 nodes"),
    ],
)
def test_a_mistake_is_one_line(index: int | None, nodes: int | None, pooled: Any, text: str) -> None:
    with pytest.raises(ConfigError) as error:
        place(index, nodes, pooled=pooled)
    assert text in str(error.value)
    assert "\n" not in str(error.value)
