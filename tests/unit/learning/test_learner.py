from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pfl_node.errors import ConfigError, LayoutMismatch, TaskError
from pfl_node.learning.learner import Learner
from pfl_node.learning.task import Data
from pfl_node.model import Model, StateCell
from pfl_node.settings import TrainSettings
from tests.unit.learning.nets import (
    Tied,
    blobs,
    convolutions,
    learner,
    plain,
    task,
    with_batch_norm,
    with_dropout,
)

NETS = [plain, with_batch_norm, with_dropout, Tied]


# -- fresh -----------------------------------------------------------------------------------------------------


def test_equal_seeds_give_equal_models_and_parts_of_them() -> None:
    me, other = learner(), learner()
    assert me.fresh(5) == other.fresh(5)
    assert me.fresh(5) != me.fresh(6)
    assert me.fresh(5, "head") == me.fresh(5).head
    assert me.fresh(5, "core") + me.fresh(6, "head") == Model(
        me.layout, np.concatenate((me.fresh(5).core.vector, me.fresh(6).head.vector))
    )


def test_a_fresh_part_does_not_keep_the_whole_model_in_memory() -> None:
    part = learner().fresh(0, "head").vector
    assert part.base is None or part.base.size == part.size


def test_a_fresh_model_leaves_the_chance_of_a_running_training_alone() -> None:
    me = learner(with_dropout)
    alone = me.train(me.fresh(0), seed=1)
    disturbed = me.train(me.fresh(0), seed=1, between=lambda: void(me.fresh(9), me.score([alone])))
    assert disturbed == alone


def void(*_: object) -> None:
    pass


# -- train -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", NETS)
def test_the_same_seed_gives_the_same_bytes_and_another_seed_other_ones(make: Callable[[], nn.Module]) -> None:
    me, other = learner(make), learner(make)
    start = me.fresh(0)
    assert me.train(start, seed=1) == other.train(start, seed=1)
    assert me.train(start, seed=1) != me.train(start, seed=2)


def test_training_lowers_the_loss_and_leaves_the_given_model_as_it_was() -> None:
    me = learner(lr=0.1, epochs=10)
    start = me.fresh(0)
    before = start.vector.copy()
    trained = me.train(start, seed=0)
    (was, now) = me.score([start, trained])
    assert now.loss < was.loss / 2
    assert now.accuracy > 0.8
    assert np.array_equal(start.vector, before)


def test_convolutions_learn_from_images() -> None:
    me = learner(convolutions, blobs(shape=(2, 6, 6)), optimizer="adam", lr=0.01, epochs=5)
    trained = me.train(me.fresh(0), seed=0)
    assert me.score([trained])[0].accuracy > 0.9


@pytest.mark.parametrize("make", NETS)
@pytest.mark.parametrize("rule", [{"optimizer": "adam"}, {"momentum": 0.9, "weight_decay": 0.1}], ids=str)
def test_training_only_one_part_leaves_the_other_as_it_was_to_the_bit(
    make: Callable[[], nn.Module], rule: dict[str, Any]
) -> None:
    me = learner(make, **rule)
    start = me.fresh(0)
    for only, frozen in (("core", "head"), ("head", "core")):
        trained = me.train(start, seed=1, only=only)  # type: ignore[arg-type]
        assert trained.of(frozen) == start.of(frozen)  # type: ignore[arg-type]
        assert trained.of(only) != start.of(only)  # type: ignore[arg-type]


def test_training_a_core_that_does_not_exist_changes_nothing() -> None:
    me = learner(task_options={"head": "*"})
    start = me.fresh(0)
    assert me.train(start, seed=1, only="core") == start
    assert me.train(start, seed=1, only="head") == me.train(start, seed=1)


def test_statistics_of_batch_normalisation_travel_and_are_not_decayed() -> None:
    me = learner(with_batch_norm, weight_decay=0.5)
    cell = StateCell(me.start(0))
    trained = me.tensors(me.train(me.fresh(0), seed=1, epochs=2, state=cell), cell.state)
    assert trained["2.num_batches_tracked"] == 10
    assert trained["2.running_mean"].any()


def test_a_frozen_parameter_of_the_users_stays_frozen() -> None:
    def half_frozen() -> nn.Module:
        module = plain()
        module[1].requires_grad_(False)  # type: ignore[index]
        return module

    me = learner(half_frozen, weight_decay=0.1)
    start = me.fresh(0)
    trained = me.train(start, seed=0)
    assert trained.core == start.core
    assert trained.head != start.head


def test_prox_pulls_towards_the_anchor() -> None:
    me = learner(lr=0.05, epochs=5)
    start, anchor = me.fresh(0), me.fresh(1)

    def distance(a: Model, b: Model) -> float:
        return float(np.linalg.norm(a.vector - b.vector))

    free = me.train(start, seed=0)
    assert distance(me.train(start, seed=0, prox=1.0), start) < distance(free, start)
    assert distance(me.train(start, seed=0, prox=1.0, anchor=anchor), anchor) < distance(free, anchor)


def test_one_step_of_prox_is_the_gradient_of_half_the_squared_distance() -> None:
    me = learner(lr=0.1, steps=1)
    start, anchor = me.fresh(0), me.fresh(1)
    free, pulled = me.train(start, seed=0), me.train(start, seed=0, prox=0.5, anchor=anchor)
    np.testing.assert_allclose(pulled.vector, free.vector - 0.1 * 0.5 * (start.vector - anchor.vector), atol=1e-6)


def test_the_call_wins_over_the_settings_and_these_over_the_task() -> None:
    me = learner(task_options={"train_defaults": {"lr": 0.3, "steps": 2, "batch": 4}}, lr=0.2)
    plain_lr = learner(lr=0.2, steps=2, batch=4)
    start = me.fresh(0)
    assert me.train(start, seed=0) == plain_lr.train(start, seed=0)
    assert me.train(start, seed=0, lr=0.1, epochs=1) == plain_lr.train(start, seed=0, lr=0.1, epochs=1)
    assert me.train(start, seed=0, lr=0.1) != me.train(start, seed=0)


@pytest.mark.parametrize(("samples", "batch"), [(17, 8), (9, 4), (1, 8), (3, 1)])
def test_batch_normalisation_survives_a_batch_of_one(samples: int, batch: int) -> None:
    data = blobs(samples)
    me = learner(with_batch_norm, data, batch=batch)
    assert me.train(me.fresh(0), seed=0).is_finite()
    assert me.train(me.fresh(0), seed=0, steps=3).is_finite()


def test_a_training_that_diverges_is_given_back_as_it_is() -> None:
    me = learner(lr=1e30, epochs=5)
    assert not me.train(me.fresh(0), seed=0).is_finite()
    assert me.train(me.fresh(0), seed=0, lr=0.1).is_finite()


def test_between_is_called_after_every_batch() -> None:
    calls: list[int] = []
    me = learner(batch=8)
    me.train(me.fresh(0), seed=0, epochs=2, between=lambda: calls.append(1))
    assert len(calls) == 10
    me.score([me.fresh(0)] * 3, between=lambda: calls.append(1))
    assert len(calls) == 13


def test_a_training_that_is_stopped_leaves_nothing_behind() -> None:
    me = learner(with_batch_norm)
    start = me.fresh(0)
    expected = me.train(start, seed=0)

    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        me.train(start, seed=5, only="head", between=stop)
    assert me.train(start, seed=0) == expected


def test_a_training_may_run_between_the_batches_of_another() -> None:
    me, other = learner(with_dropout), learner(with_dropout, blobs(seed=1))
    start = me.fresh(0)
    expected = other.train(start, seed=3)
    seen: list[Model] = []
    me.score([start], between=lambda: seen.append(other.train(start, seed=3)))
    assert seen == [expected]


# -- score -----------------------------------------------------------------------------------------------------


def test_scores_are_those_of_torch() -> None:
    me = learner()
    data, model = blobs(), me.fresh(0)
    module = plain()
    weights = {k: torch.tensor(v) for k, v in me.tensors(model).items()}
    module.load_state_dict(weights)
    output = module(data.x)
    (score,) = me.score([model])
    assert score.loss == pytest.approx(nn.functional.cross_entropy(output, data.y).item(), abs=1e-6)
    assert score.accuracy == (output.argmax(1) == data.y).sum().item() / 40
    assert score.samples == 40


def test_a_score_over_several_batches_is_the_mean_over_all_samples() -> None:
    me = learner()
    model = me.fresh(0)
    (whole,) = me.score([model])
    me._eval_batch = 7
    (pieces,) = me.score([model])
    assert pieces.loss == pytest.approx(whole.loss, rel=1e-6)
    assert pieces.accuracy == pytest.approx(whole.accuracy)


def test_each_split_is_scored_on_its_own_data() -> None:
    me = learner(task_options={"val": blobs(6, seed=1), "test": blobs(9, seed=2)})
    model = me.fresh(0)
    scores = [me.score([model], split=s)[0] for s in ("train", "val", "test")]
    assert [s.samples for s in scores] == [40, 6, 9]
    assert len({s.loss for s in scores}) == 3


def test_a_sample_is_the_same_for_all_models_unless_each_has_its_own() -> None:
    me = learner()
    model = me.fresh(0)
    together = me.score([model, model], samples=10, seed=1)
    apart = me.score([model, model], samples=10, own_sample_each=True, seed=1)
    assert together[0] == together[1]
    assert apart[0] != apart[1]
    assert apart[0] == together[0]
    assert [s.samples for s in (*together, *apart)] == [10] * 4
    assert me.score([model], samples=10, seed=1) != me.score([model], samples=10, seed=2)


@pytest.mark.parametrize("samples", [None, 40, 1000])
def test_equal_models_can_be_told_apart_by_own_samples_even_when_that_is_all_the_data(samples: int | None) -> None:
    me = learner()
    model = me.fresh(0)
    first, second = me.score([model, model], samples=samples, own_sample_each=True)
    assert first != second
    assert first.samples == second.samples == 40


def test_scoring_does_not_move_statistics() -> None:
    me = learner(with_batch_norm)
    model = me.train(me.fresh(0), seed=0)
    assert me.score([model]) == me.score([model])


def test_no_models_have_no_scores() -> None:
    assert learner().score([]) == ()


def test_labels_that_are_no_classes_have_a_loss_but_no_accuracy() -> None:
    data = Data(torch.randn(20, 4), torch.randn(20, 1))
    me = Learner(task(lambda: nn.Linear(4, 1), data, loss=nn.functional.mse_loss), TrainSettings(lr=0.1), "cpu")
    before, after = me.score([me.fresh(0), me.train(me.fresh(0), seed=0, epochs=20)])
    assert after.loss < before.loss
    assert math.isnan(after.accuracy)


def test_a_loss_for_each_sample_is_averaged() -> None:
    def each(output: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(output, y, reduction="none")

    mine, usual = learner(task_options={"loss": each}), learner()
    start = usual.fresh(0)
    assert mine.train(start, seed=0) == usual.train(start, seed=0)


def squared(output: Tensor, y: Tensor) -> Tensor:
    return ((output - y) ** 2).mean()


@pytest.mark.parametrize("loss", [nn.MSELoss(), nn.functional.l1_loss, squared])
@pytest.mark.parametrize("turned", [False, True])
def test_a_loss_over_all_pairs_of_outputs_and_labels_is_refused(loss: Any, turned: bool) -> None:
    data = Data(torch.randn(20, 4), torch.zeros(20, 1) if turned else torch.zeros(20))
    last = nn.Flatten(0) if turned else nn.Identity()
    with pytest.raises(TaskError, match=r"compares each output with each label.*squeeze\(-1\)"):
        Learner(task(lambda: nn.Sequential(nn.Linear(4, 1), last), data, loss=loss), TrainSettings(), "cpu")


def test_a_loss_that_flattens_its_arguments_itself_is_accepted() -> None:
    data = Data(torch.randn(20, 4), torch.randn(20))
    for loss in (lambda o, y: squared(o.flatten(), y), lambda o, y: squared(o.squeeze(1), y)):
        Learner(task(lambda: nn.Linear(4, 1), data, loss=loss), TrainSettings(), "cpu")


def test_a_loss_without_a_gradient_is_refused() -> None:
    with pytest.raises(TaskError, match=r"the loss has no gradient: leave out \.detach"):
        learner(task_options={"loss": lambda output, y: nn.functional.cross_entropy(output.detach(), y)})


def test_the_error_of_a_loss_for_several_outputs_is_its_own() -> None:
    class Two(nn.Linear):
        def forward(self, x: Tensor) -> Any:
            return {"logits": super().forward(x)}

    data = Data(torch.randn(20, 4), torch.zeros(20, dtype=torch.long))

    def loss(output: Any, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(output["logit"], y)

    with pytest.raises(TaskError, match="KeyError: 'logit'"):
        Learner(task(lambda: Two(4, 3), data, loss=loss), TrainSettings(), "cpu")


# -- what does not fit -----------------------------------------------------------------------------------------


def test_a_model_of_another_layout_is_refused() -> None:
    me, other = learner(), learner(with_batch_norm)
    for refused in (lambda: me.train(other.fresh(0), seed=0), lambda: me.score([other.fresh(0)])):
        with pytest.raises(LayoutMismatch):
            refused()
    with pytest.raises(LayoutMismatch):
        me.train(me.fresh(0), seed=0, prox=1.0, anchor=other.fresh(0))
    with pytest.raises(LayoutMismatch):
        me.score([me.fresh(0, "head")])


@pytest.mark.parametrize(
    ("model", "data", "text"),
    [
        (
            lambda: nn.Linear(3, 3),
            blobs(),
            "the model (Linear) takes 3 features, and a sample has the shape (4,)",
        ),
        (plain, Data(torch.randn(20, 4), torch.randn(20)), "the labels are torch.float32"),
        (
            plain,
            Data(torch.randn(20, 4), torch.arange(20) % 4),
            "a label 3, the model has 3 outputs",
        ),
        (plain, Data(torch.randn(20, 4), torch.arange(20) % 3 - 1), "a label -1"),
        (lambda: "net", blobs(), "the model is of type str"),
    ],
)
def test_a_model_that_does_not_fit_its_data_is_found_at_once(
    model: Callable[[], nn.Module], data: Data, text: str
) -> None:
    with pytest.raises(TaskError) as error:
        learner(model, data)
    assert text in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("split", "data", "text"),
    [
        ("test", Data(torch.randn(20, 5), torch.arange(20) % 3), "fails on the test data, x (2, 5)"),
        ("val", Data(torch.randn(20, 4), torch.randn(20)), "the labels are torch.float32"),
        ("test", Data(torch.randn(20, 4), torch.arange(20) % 5), "the test data has a label 4"),
    ],
)
def test_data_to_measure_on_that_does_not_fit_is_found_at_once(split: str, data: Data, text: str) -> None:
    with pytest.raises(TaskError) as error:
        learner(task_options={split: data})
    assert text in str(error.value)


def test_a_bad_head_name_is_found_at_once() -> None:
    with pytest.raises(TaskError, match="for the head"):
        learner(task_options={"head": "clasifier"})


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_a_gpu_that_is_not_there_is_one_line(device: str) -> None:
    with pytest.raises(ConfigError, match="finds no GPU"):
        Learner(task(), TrainSettings(), device)


@pytest.mark.parametrize("device", ["tpu", "meta"])
def test_a_device_that_cannot_be_used_is_one_line(device: str) -> None:
    with pytest.raises(ConfigError, match="use auto, cpu, cuda"):
        Learner(task(), TrainSettings(), device)


# -- files -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", NETS)
def test_a_model_becomes_named_tensors_and_back(make: Callable[[], nn.Module]) -> None:
    me = learner(make)
    model = me.train(me.fresh(0), seed=0)
    tensors = me.tensors(model)
    assert me.from_tensors(tensors) == model
    module = make()
    module.load_state_dict({k: torch.tensor(v) for k, v in tensors.items()}, strict=make is not Tied)
    assert me.from_tensors(me.tensors(model.head), "head") == model.head


# -- many nodes in one process ---------------------------------------------------------------------------------


def test_nodes_of_one_task_share_their_modules_and_their_layout() -> None:
    nodes = [learner(with_dropout, blobs(seed=i)) for i in range(10)]
    assert len({id(n._pool) for n in nodes}) == 1
    assert len({id(n.layout) for n in nodes}) == 1


def test_the_same_model_trains_differently_on_the_data_of_two_nodes() -> None:
    me, other = learner(), learner(data=blobs(seed=1))
    start = me.fresh(0)
    assert me.train(start, seed=0) != other.train(start, seed=0)
