"""The options of `[train]` beyond plain SGD and Adam: what each does to a training."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from pfl_node.errors import ConfigError
from pfl_node.learning.layout import pack
from pfl_node.learning.learner import Learner
from pfl_node.learning.lr_schedule import Schedule
from pfl_node.learning.train_options import BUILT_IN, resolve
from pfl_node.learning.training_loop import batches, shorten
from pfl_node.model import StateCell
from pfl_node.settings import TrainSettings
from pfl_node.settings.sections import PrivacySettings
from tests.unit.learning.nets import blobs, learner, plain, task

pytestmark = pytest.mark.filterwarnings("default")  # torch.optim imports the compiler, which warns

NAMED: list[dict[str, Any]] = [
    {"optimizer": "AdamW"},
    {"optimizer": "adamw", "lr": 0.01, "weight_decay": 0.1, "optimizer_options": {"betas": [0.8, 0.99]}},
    {"optimizer": "RMSprop", "lr": 0.01, "momentum": 0.5},
    {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9, "optimizer_options": {"nesterov": True}},
    {"optimizer": "NAdam", "lr": 0.01},
    {"optimizer": "Adafactor", "lr": 0.01},  # its state depends on the shapes of the parameters
    {"optimizer": "LBFGS", "lr": 0.1, "optimizer_options": {"max_iter": 3}},
]


def by_torch(module: nn.Module, rule: dict[str, Any], seed: int, epochs: float) -> None:
    kinds = {k.lower(): v for k, v in vars(torch.optim).items()}
    knobs = {k: v for k, v in rule.items() if k in ("lr", "momentum", "weight_decay")}
    made = kinds[rule["optimizer"].lower()](module.parameters(), **knobs, **rule.get("optimizer_options", {}))
    data = blobs()
    for index in batches(len(data.x), resolve([{"epochs": epochs}, BUILT_IN]), seed):

        def closure(index: torch.Tensor = index) -> torch.Tensor:
            made.zero_grad()
            loss = cross_entropy(module(data.x[index]), data.y[index])
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        if rule["optimizer"] == "LBFGS":
            made.step(closure)
        else:
            closure()
            made.step()


@pytest.mark.parametrize("rule", NAMED, ids=lambda rule: rule["optimizer"])
def test_an_optimiser_of_torch_by_name_gives_what_torch_gives(rule: dict[str, Any]) -> None:
    me = learner(**rule)
    trained = me.train(me.fresh(1), seed=3, epochs=2)
    torch.manual_seed(1)
    module = plain()
    by_torch(module, rule, seed=3, epochs=2)
    torch.testing.assert_close(
        torch.tensor(trained.vector), torch.tensor(pack(module, me.layout)), atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"optimizer": "AdamWW"}, "torch.optim has no 'AdamWW'; did you mean 'AdamW'?"),
        (
            {"optimizer": "AdamW", "optimizer_options": {"beta": 1}},
            "AdamW has no option 'beta'; did you mean 'betas'",
        ),
        ({"optimizer": "AdamW", "momentum": 0.9}, "train.momentum: AdamW has no option 'momentum'"),
        ({"optimizer": "AdamW", "optimizer_options": {"betas": [2, 3]}}, "Invalid beta"),
        ({"optimizer": "SparseAdam"}, "needs sparse gradients"),
        ({"optimizer": "LBFGS", "keep_optimizer": True}, "LBFGS repeats the batch"),
        ({"schedule": "cosine"}, "needs its length: set --rounds"),
    ],
)
def test_a_wrong_option_is_one_line_before_training(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says.replace("?", r"\?")) as raised:
        learner(**settings)
    assert "\n" not in str(raised.value)


def test_the_tasks_options_of_another_optimiser_are_not_used() -> None:
    levels = ({"optimizer": "AdamW"}, {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9}, BUILT_IN)
    assert resolve(levels).arguments == {}
    assert resolve(levels[1:]).arguments is None


@pytest.mark.parametrize("optimizer", ["adam", "sgd", "AdamW"])
def test_a_kept_optimiser_continues_in_the_next_round(optimizer: str) -> None:
    options: dict[str, Any] = {"optimizer": optimizer, "lr": 0.01, "batch": 40}
    if optimizer == "sgd":
        options["momentum"] = 0.9
    kept, new = learner(keep_optimizer=True, **options), learner(**options)
    both = learner(**options)
    once = both.train(both.fresh(0), seed=1, steps=2)  # all samples in each batch: the order does not matter

    def twice(me: Learner) -> Any:
        cell = StateCell(me.start(0))
        first = me.train(me.fresh(0), seed=1, steps=1, state=cell)
        return me.train(first, seed=2, steps=1, state=cell).vector

    np.testing.assert_allclose(twice(kept), once.vector, atol=1e-6)
    assert not np.allclose(twice(new), once.vector, atol=1e-5)


def test_the_optimiser_of_each_part_is_kept_apart() -> None:
    me = learner(optimizer="adam", keep_optimizer=True)
    cell, model = StateCell(me.start(0)), me.fresh(0)
    me.train(model, seed=1, only="head", state=cell)
    me.train(model, seed=1, only="core", state=cell)
    assert {name.split("/")[1] for name in cell.state.tensors} == {"head", "core"}
    assert me.stateful
    assert not learner(optimizer="adam").stateful


@pytest.mark.parametrize("only", [None, "head"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "AdamW"])
def test_the_state_of_a_slot_is_that_of_its_trainings_alone(optimizer: str, only: Any) -> None:
    momentum: dict[str, Any] = {"momentum": 0.9} if optimizer == "sgd" else {}
    me = learner(optimizer=optimizer, keep_optimizer=True, **momentum)

    def model_of_slot(slot: int, others: bool) -> Any:
        cell, mine, other = StateCell(me.start(0)), me.fresh(0), me.fresh(1)
        for t in range(3):
            if others:
                other = me.train(other, seed=100 + t, only=only, slot=1 - slot, state=cell)
            mine = me.train(mine, seed=t, only=only, slot=slot, state=cell)
        return mine

    assert model_of_slot(1, True) == model_of_slot(1, False) == model_of_slot(0, True) == model_of_slot(0, False)


def test_the_state_of_an_old_checkpoint_is_that_of_the_first_slot() -> None:
    me = learner(optimizer="adam", keep_optimizer=True)
    cell = StateCell(me.start(0))
    me.train(me.fresh(0), seed=1, state=cell)
    assert {name.rpartition("/0/")[0] for name in cell.state.tensors} == {"optimizer/all"}
    me.train(me.fresh(0), seed=1, slot=2, state=cell)
    assert {name.rpartition("/0/")[0] for name in cell.state.tensors} == {"optimizer/all", "optimizer.2/all"}


def test_schedules_are_the_formulas_of_their_names() -> None:
    cosine = Schedule(shape="cosine", rounds=10, factor=0.0)
    assert [cosine.at(t, t + 1) for t in (0, 5, 10, 12)] == pytest.approx([1.0, 0.5, 0.0, 0.0])
    assert Schedule(shape="cosine", rounds=12, warmup=2, factor=0.2).at(7, 8) == pytest.approx(0.6)
    step = Schedule(shape="step", every=3, factor=0.5)
    assert [step.at(t, t + 1) for t in (0, 2, 3, 6)] == [1.0, 1.0, 0.5, 0.25]
    warm = Schedule(warmup=4)
    assert [warm.at(t, t + 1) for t in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


@pytest.mark.parametrize("optimizer", ["sgd", "AdamW"])
def test_the_rate_of_a_round_follows_the_schedule(optimizer: str) -> None:
    settings = TrainSettings(optimizer=optimizer, lr=0.1, schedule="cosine", batch=40)
    scheduled = Learner(task(), settings, "cpu", rounds=4)
    assert scheduled.batches() == 1
    plainly = learner(optimizer=optimizer, batch=40)
    half = plainly.train(plainly.fresh(0), seed=1, lr=0.1 * (1 + math.cos(math.pi / 2)) / 2)
    np.testing.assert_allclose(scheduled.train(scheduled.fresh(0), seed=1, round=2).vector, half.vector, atol=1e-6)


def test_clipping_is_torchs() -> None:
    grads = [torch.randn(7, generator=torch.Generator().manual_seed(n)) for n in range(2)]
    params = [nn.Parameter(torch.zeros(7)) for _ in grads]
    for param, grad in zip(params, grads, strict=True):
        param.grad = grad.clone()
    torch.nn.utils.clip_grad_norm_(params, 0.5)
    shorten(grads, 0.5)
    for param, grad in zip(params, grads, strict=True):
        torch.testing.assert_close(param.grad, grad)


def test_a_clipped_step_is_not_longer_than_the_limit() -> None:
    me = learner(lr=1.0, clip=0.01, batch=40)
    before = me.fresh(0)
    after = me.train(before, seed=1, steps=1)
    assert np.linalg.norm(after.vector - before.vector) == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("optimizer", ["sgd", "AdamW"])
def test_accumulated_batches_are_one_large_batch(optimizer: str) -> None:
    small = learner(optimizer=optimizer, lr=0.1, batch=10, accumulate=4)
    large = learner(optimizer=optimizer, lr=0.1, batch=40)
    start = small.fresh(0)
    np.testing.assert_allclose(
        small.train(start, seed=1, steps=4).vector, large.train(start, seed=1, steps=1).vector, atol=1e-6
    )


def test_the_last_batches_count_although_they_are_too_few() -> None:
    me = learner(lr=0.1, batch=10, accumulate=3)
    one, two = (me.train(me.fresh(0), seed=1, steps=n) for n in (3, 4))
    assert one != two


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_mixed_precision_learns_with_float32_weights(precision: str) -> None:
    me = learner(lr=0.1, precision=precision, epochs=5)
    start = me.fresh(0)
    after = me.train(start, seed=1)
    exact = learner(lr=0.1, epochs=5).train(start, seed=1)
    assert after.vector.dtype == np.float32
    assert after != exact
    np.testing.assert_allclose(after.vector, exact.vector, atol=0.1)
    assert me.score([after])[0].loss < me.score([start])[0].loss


def test_fp16_with_a_torch_optimiser_and_clipping_learns() -> None:
    me = learner(optimizer="AdamW", lr=0.01, precision="fp16", clip=1.0, accumulate=2, epochs=5)
    start = me.fresh(0)
    assert me.score([me.train(start, seed=1)])[0].loss < me.score([start])[0].loss


@pytest.mark.slow  # compiles C++
def test_a_compiled_model_learns_the_same() -> None:
    me, other = learner(compile=True, lr=0.1), learner(lr=0.1)
    start = me.fresh(0)
    np.testing.assert_allclose(me.train(start, seed=1).vector, other.train(start, seed=1).vector, atol=1e-5)


@pytest.mark.parametrize(
    "option", [{"accumulate": 2}, {"precision": "bf16"}, {"compile": True}, {"optimizer": "LBFGS"}]
)
def test_private_training_refuses_options_that_mix_samples(option: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="cannot be combined with train"):
        Learner(task(), TrainSettings(**option), "cpu", PrivacySettings(dp=True))
