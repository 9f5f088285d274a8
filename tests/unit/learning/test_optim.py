from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from pfl_node.learning.layout import pack
from pfl_node.learning.train_options import BUILT_IN, resolve
from pfl_node.learning.training_loop import batches
from tests.unit.learning.nets import blobs, learner, plain, with_batch_norm

RULES: list[dict[str, Any]] = [
    {"optimizer": "sgd", "lr": 0.1},
    {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9},
    {"optimizer": "sgd", "lr": 0.1, "momentum": 0.5, "weight_decay": 0.01},
    {"optimizer": "adam", "lr": 0.01},
    {"optimizer": "adam", "lr": 0.01, "weight_decay": 0.1},
]


def by_torch(module: nn.Module, rule: dict[str, Any], seed: int, epochs: float) -> None:
    made = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[rule["optimizer"]]
    optimizer = made(module.parameters(), **{k: v for k, v in rule.items() if k != "optimizer"})
    data = blobs()
    for index in batches(len(data.x), resolve([{"epochs": epochs}, BUILT_IN]), seed):
        optimizer.zero_grad()
        cross_entropy(module(data.x[index]), data.y[index]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


@pytest.mark.filterwarnings("default")  # torch.optim imports the compiler, which warns
@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("make", [plain, with_batch_norm])
def test_the_flat_optimiser_does_what_torch_optim_does(make: Any, rule: dict[str, Any]) -> None:
    me = learner(make, **rule)
    trained = me.train(me.fresh(1), seed=3, epochs=3)
    torch.manual_seed(1)
    module = make()
    by_torch(module, rule, seed=3, epochs=3)
    torch.testing.assert_close(
        torch.tensor(trained.vector), torch.tensor(pack(module, me.layout)), atol=1e-6, rtol=1e-6
    )


def test_an_optimiser_has_no_memory_of_the_training_before() -> None:
    me = learner(optimizer="adam", lr=0.01)
    start = me.fresh(0)
    first = me.train(start, seed=1)
    me.train(first, seed=2)
    assert me.train(start, seed=1) == first
