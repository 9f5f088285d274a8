from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pfl_node import predictions
from pfl_node.errors import LayoutMismatch, TaskError
from pfl_node.learning.learner import Learner
from pfl_node.learning.task import Data
from pfl_node.model import Model
from pfl_node.settings import TrainSettings
from tests.unit.learning.nets import (
    CLASSES,
    Tied,
    blobs,
    convolutions,
    plain,
    student,
    task,
    with_batch_norm,
    with_dropout,
)


def by_torch(make: Callable[[], nn.Module], me: Learner, model: Model, x: Tensor) -> Tensor:
    module = make()
    module.load_state_dict({k: torch.tensor(v) for k, v in me.tensors(model).items()}, strict=make is not Tied)
    module.eval()
    with torch.inference_mode():
        return module(x).softmax(1)  # type: ignore[no-any-return]


@pytest.mark.parametrize("make", [plain, with_batch_norm, with_dropout, Tied])
def test_predictions_are_the_softmax_of_the_model_as_it_is_evaluated(make: Callable[[], nn.Module]) -> None:
    me = student(make)
    model = me.train(me.fresh(0), seed=0)
    said = me.predict(model, seed=0)
    np.testing.assert_allclose(
        predictions.outputs(said), by_torch(make, me, model, blobs(30, seed=9).x), atol=1e-6
    )
    assert predictions.outputs(said).sum(1) == pytest.approx(np.ones(30), abs=1e-5)
    assert said == me.predict(model, seed=1)


def test_images_with_the_channels_last_are_predicted_alike_whatever_the_batches() -> None:
    aux = blobs(150, shape=(2, 6, 6), seed=9).x
    me = student(convolutions, blobs(shape=(2, 6, 6)), auxiliary=aux)
    model = me.fresh(0)
    said = predictions.outputs(me.predict(model, seed=0))
    np.testing.assert_allclose(said, by_torch(convolutions, me, model, aux), atol=1e-5)


def test_what_a_model_says_does_not_change_the_model_or_the_learner() -> None:
    me = student(with_batch_norm)
    model = me.train(me.fresh(0), seed=0)
    before = me.score([model])
    said = me.predict(model, seed=0, novelty=2)
    assert me.score([model]) == before
    assert me.predict(model, seed=5, novelty=2) == said


def test_models_of_different_architectures_speak_of_the_same_samples() -> None:
    nodes = [student(make, blobs(seed=i)) for i, make in enumerate((plain, with_batch_norm, Tied))]
    said = [me.predict(me.fresh(0), seed=0) for me in nodes]
    assert len({me.layout for me in nodes}) == 3
    assert len({s.layout for s in said}) == 1
    assert all(me.predictions == s.layout for me, s in zip(nodes, said, strict=True))
    taught = nodes[0].distill(nodes[0].fresh(0), seed=0, teacher=said[1])
    assert taught.layout == nodes[0].layout


@pytest.mark.parametrize(
    "other",
    [blobs(30, seed=8).x, blobs(29, seed=9).x, blobs(30, seed=9).x.flip(0)],
    ids=["other samples", "fewer", "another order"],
)
def test_nodes_with_other_auxiliary_samples_do_not_fit(other: Tensor) -> None:
    me, stranger = student(), student(auxiliary=other)
    assert me.predictions != stranger.predictions
    with pytest.raises(LayoutMismatch, match="does not hold predictions for my auxiliary samples"):
        me.distill(me.fresh(0), seed=0, teacher=stranger.predict(stranger.fresh(0), seed=0))


def test_how_the_same_samples_were_given_does_not_matter() -> None:
    x = blobs(30, seed=9).x
    ways: list[Any] = [x, x.numpy(), x.double(), x.tolist(), (x, None), torch.utils.data.TensorDataset(x)]
    assert len({student(auxiliary=way).predictions for way in ways}) == 1


def test_the_samples_are_not_copied_for_each_node() -> None:
    shape = (2, 6, 6)
    aux = blobs(30, shape=shape, seed=9).x
    nodes = [student(convolutions, blobs(shape=shape, seed=i), auxiliary=aux) for i in range(3)]
    assert {me._needed()[0].x.data_ptr() for me in nodes} == {aux.data_ptr()}


# -- counts ----------------------------------------------------------------------------------------------------


def test_counts_are_those_of_the_training_labels() -> None:
    data = Data(torch.randn(7, 4), torch.tensor([0, 0, 2, 2, 2, -100, 0]))
    me = student(data=data, val=blobs(5))
    said = me.predict(me.fresh(0), seed=0, counts=True)
    assert predictions.counts(said).tolist() == [3, 0, 3]
    assert not predictions.counts(me.predict(me.fresh(0), seed=0)).any()


def test_labels_that_are_probabilities_count_by_their_shares() -> None:
    me = student(data=Data(torch.randn(4, 4), torch.tensor([[0.5, 0.5, 0], [0, 1, 0], [0, 1, 0], [0.5, 0, 0.5]])))
    assert predictions.counts(me.predict(me.fresh(0), seed=0, counts=True)).tolist() == [1, 2.5, 0.5]


# -- where there is nothing to say -----------------------------------------------------------------------------


def test_without_auxiliary_samples_the_task_is_named_and_what_to_do() -> None:
    me = Learner(task(), TrainSettings(), "cpu")
    assert me.predictions is None
    other = student()
    teacher = other.predict(other.fresh(0), seed=0)
    refusals: list[Callable[[], Model]] = [
        lambda: me.predict(me.fresh(0), seed=0),
        lambda: me.distill(me.fresh(0), seed=0, teacher=teacher),
    ]
    for refused in refusals:
        with pytest.raises(
            TaskError, match=r"task blobs: .* return `auxiliary`, .*--set task\.auxiliary=0\.5"
        ) as error:
            refused()
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("model", "y", "loss"),
    [
        (lambda: nn.Linear(4, 1), torch.randn(20, 1), nn.functional.mse_loss),
        (lambda: nn.Linear(4, CLASSES), torch.randn(20, CLASSES), nn.functional.mse_loss),
        (lambda: nn.Sequential(nn.Linear(4, 6), nn.Unflatten(1, (3, 2))), torch.zeros(20, 2).long(), None),
    ],
    ids=["a number", "three numbers", "a class for each word"],
)
def test_outputs_that_are_no_class_scores_are_not_predicted(model: Any, y: Tensor, loss: Any) -> None:
    me = student(model, Data(torch.randn(20, 4), y), loss=loss)
    assert me.predictions is None
    with pytest.raises(TaskError, match="the policy needs class scores"):
        me.predict(me.fresh(0), seed=0)


def test_a_model_of_another_layout_is_refused() -> None:
    me, other = student(), student(with_batch_norm)
    teacher = me.predict(me.fresh(0), seed=0)
    with pytest.raises(LayoutMismatch):
        me.predict(other.fresh(0), seed=0)
    with pytest.raises(LayoutMismatch):
        me.distill(other.fresh(0), seed=0, teacher=teacher)
    with pytest.raises(LayoutMismatch, match="does not hold predictions for my auxiliary samples"):
        me.distill(me.fresh(0), seed=0, teacher=me.fresh(0))


def test_between_is_called_after_every_batch_of_predictions() -> None:
    calls: list[int] = []
    me = student(auxiliary=blobs(1100, seed=9).x)
    me.predict(me.fresh(0), seed=0, between=lambda: calls.append(1))
    assert len(calls) == 3
