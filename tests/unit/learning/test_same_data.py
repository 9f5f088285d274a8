"""What a node gets for a seed stays what it is: results of before can be compared, and checkpoints go on."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

from pfl_node.learning import images
from pfl_node.learning.datasets import Dataset, Images
from pfl_node.learning.digits import digits
from pfl_node.learning.task import Task


def digest(task: Task) -> str:
    """Of all data, its order and what is said of it."""
    seen = hashlib.sha256()
    for data in (task.train, task.val, task.test):
        assert data is not None
        seen.update(data.x.contiguous().numpy().tobytes())
        seen.update(data.y.numpy().tobytes())
    if task.auxiliary is not None:
        seen.update(task.auxiliary.contiguous().numpy().tobytes())
    seen.update(repr((task.cluster, task.name, sorted(task.train_defaults.items()))).encode())
    return seen.hexdigest()[:12]


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"index": 0, "nodes": 20}, "b288d0448be4"),
        ({"index": 17, "nodes": 20, "seed": 3}, "22899a3d39d3"),
        ({"index": 5, "nodes": 20, "sizes": (14, 6)}, "560e61b18557"),
        ({"index": 15, "nodes": 20, "sizes": "14,6", "angles": "0,90", "auxiliary": 0.25}, "6062d96e5041"),
        ({"index": 7, "nodes": 10, "alpha": 0.1, "auxiliary": 0.5}, "cb353d17d51a"),
        ({"index": None, "nodes": None, "node_id": "late"}, "912ebd24f122"),
        ({"index": 3, "nodes": None, "node_id": "n3"}, "416f75da650d"),
        ({"index": 900, "nodes": 1000}, "b3feabbd7359"),
        ({"index": 2, "nodes": 4, "samples": 100, "angles": [0, 90, 180, 270]}, "2fb8294554c9"),
    ],
    ids=str,
)
def test_the_digits_of_a_place_are_what_they_were(given: dict[str, Any], found: str) -> None:
    assert digest(digits(**{"seed": 0, "node_id": "n", **given})) == found


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"index": 0, "nodes": 6}, "ef31a10bed68"),
        ({"index": 4, "nodes": 6, "seed": 3, "angles": (0, 180), "samples": 50, "val": 20}, "c88f4022b80b"),
        ({"index": 3, "nodes": 6, "partition": "shards", "val": 0}, "3d36c6e9d319"),
        (
            {"index": 3, "nodes": 6, "partition": "dirichlet", "alpha": 0.3, "auxiliary": 0.5, "angles": (0, 90)},
            "887c93cd2af7",
        ),
        ({"index": 2, "nodes": 6, "partition": "quantity", "alpha": 0.5, "val": 5, "tests": 20}, "af241d7616f5"),
        ({"index": None, "nodes": None, "node_id": "late", "angles": (0, 180)}, "e5466048c6f8"),
        (
            {
                "index": 3,
                "nodes": None,
                "node_id": "n3",
                "angles": (0, 180),
                "tests": "all",
                "auxiliary": 100,
                "auxiliary_samples": 30,
            },
            "91e1477eec82",
        ),
    ],
    ids=str,
)
def test_the_images_of_a_place_are_what_they_were(
    given: dict[str, Any], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = np.random.default_rng(0)
    train, test = (
        Images(chance.integers(0, 256, (n, 8, 8, 3), dtype=np.uint8), np.arange(n) % 10) for n in (600, 100)
    )
    data = Dataset("cifar10", train, test, 10)
    monkeypatch.setattr(images, "load", lambda name, root, *, size, download: data)
    assert digest(images.images(**{"seed": 0, "node_id": "n", "dataset": "cifar10", **given})) == found
