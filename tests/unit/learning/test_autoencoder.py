from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pfl_node import predictions
from pfl_node.errors import TaskError
from pfl_node.learning import layout as layouts
from pfl_node.learning.autoencoder import symmetric
from pfl_node.learning.learner import Learner
from pfl_node.learning.seeding import seeded
from pfl_node.learning.task import Data
from tests.unit.learning.nets import blobs, plain, student, with_batch_norm, with_dropout


def strangeness(me: Learner, epochs: int = 5, **more: Any) -> Any:
    return predictions.novelty(me.predict(me.fresh(0), seed=0, novelty=epochs, **more))


def only(label: int, seed: int = 0) -> Data:
    x, y = blobs(90, seed=seed)
    return Data(x[y == label], y[y == label])


def test_a_sample_is_less_strange_to_a_node_that_has_seen_its_like() -> None:
    aux = blobs(60, seed=9)
    errors = np.stack([strangeness(student(data=only(c), auxiliary=aux, batch=8), 60) for c in range(3)])
    assert (errors.argmin(0) == aux.y.numpy()).mean() > 0.8
    assert (errors > 0).all()


def test_without_the_wish_there_is_no_novelty() -> None:
    assert not strangeness(student(), 0).any()
    assert strangeness(student(), 1).all()


def test_novelty_is_a_function_of_the_data_and_the_epochs_alone() -> None:
    me, again = student(plain), student(with_dropout)
    first = predictions.novelty(me.predict(me.fresh(0), seed=0, novelty=3))
    second = predictions.novelty(again.predict(again.fresh(4), seed=7, novelty=3))
    assert np.array_equal(first, second)
    assert not np.array_equal(first, strangeness(me, 4))
    assert not np.array_equal(first, strangeness(student(data=blobs(seed=1)), 3))


def test_the_autoencoder_is_trained_once() -> None:
    me, calls = student(batch=8), []
    first = strangeness(me, 4, between=lambda: calls.append(1))
    trained = len(calls)
    assert trained == 1 + 4 * 5 + 1  # predictions, batches, errors
    assert np.array_equal(strangeness(me, 4, between=lambda: calls.append(1)), first)
    assert len(calls) == trained + 1


def test_a_training_that_is_stopped_is_done_again_from_the_start() -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    me = student()
    expected = strangeness(student())
    with pytest.raises(KeyboardInterrupt):
        strangeness(me, between=stop)
    assert np.array_equal(strangeness(me), expected)


def test_scores_between_the_batches_do_not_disturb_it() -> None:
    me = student(with_dropout)
    assert np.array_equal(strangeness(me, between=lambda: void(me.score([me.fresh(1)]))), strangeness(student()))


def void(*_: object) -> None:
    pass


def test_it_is_trained_with_the_batch_of_the_settings_else_with_64() -> None:
    def batches(**settings: Any) -> int:
        calls: list[int] = []
        strangeness(student(data=blobs(130), **settings), 1, between=lambda: calls.append(1))
        return len(calls) - 2

    assert batches() == 3
    assert batches(batch=10) == 13
    assert batches(train_defaults={"batch": 65}) == 2


@pytest.mark.filterwarnings("default")  # torch.optim imports the compiler, which warns
def test_it_learns_as_plain_torch_does() -> None:
    data, aux = blobs(40), blobs(30, seed=9).x
    me = student(data=data, auxiliary=aux)
    low, high = aux.min(), aux.max()

    def scaled(x: Tensor) -> Tensor:
        return torch.clamp((x - low) / (high - low), 0, 1)

    with seeded(me._needed()[1]._seed):
        module = symmetric(4)
    rule = torch.optim.Adam(module.parameters(), lr=1e-3, weight_decay=1e-5)
    for _ in range(10):  # one batch each, as 40 samples are fewer than 64
        rule.zero_grad()
        nn.functional.mse_loss(module(scaled(data.x)), scaled(data.x)).backward()  # type: ignore[no-untyped-call]
        rule.step()
    with torch.inference_mode():
        errors = (module(scaled(aux)) - scaled(aux)).square().mean(1)
    np.testing.assert_allclose(strangeness(me, 10), errors, atol=1e-6)


def test_inputs_far_outside_the_auxiliary_samples_are_clamped() -> None:
    data = blobs()
    wild = Data(data.x * 1e20, data.y)
    assert np.isfinite(strangeness(student(data=wild))).all()


@pytest.mark.parametrize(
    ("own", "aux"),
    [
        (
            torch.randint(0, 256, (20, 2, 3), dtype=torch.uint8),
            torch.randint(0, 256, (9, 2, 3), dtype=torch.uint8),
        ),
        (torch.randn(20, 1, 2, 3), torch.zeros(9, 1, 2, 3)),
        (torch.randn(1, 6), torch.randn(1, 6)),
    ],
    ids=["bytes", "all the same", "one of each"],
)
def test_any_inputs_will_do(own: Tensor, aux: Tensor) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(x.float().flatten(1))  # type: ignore[no-any-return]

    me = student(Net, Data(own, torch.arange(len(own)) % 3), auxiliary=aux)
    errors = strangeness(me)
    assert errors.shape == (len(aux),)
    assert np.isfinite(errors).all()


def test_nodes_share_the_modules_of_their_autoencoders() -> None:
    nodes = [student(data=blobs(seed=i)) for i in range(3)]
    assert len({id(n._needed()[1]._pool) for n in nodes}) == 1


# -- a task's own ----------------------------------------------------------------------------------------------


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=2, padding=1),
        nn.BatchNorm2d(4),
        nn.ConvTranspose2d(4, 2, 2, stride=2),
        nn.Sigmoid(),
    )


def test_a_task_may_bring_its_own_autoencoder_for_images_in_their_shape() -> None:
    shape, net = (2, 4, 4), lambda: nn.Sequential(nn.Flatten(), nn.Linear(32, 3))
    options: dict[str, Any] = {"data": blobs(21, shape=shape), "auxiliary": blobs(9, shape=shape, seed=9).x}
    mine, usual = student(net, **options, autoencoder=convolutional, batch=4), student(net, **options)
    assert strangeness(mine).shape == (9,)
    assert np.isfinite(strangeness(mine)).all()
    assert not np.array_equal(strangeness(mine), strangeness(usual))
    assert np.array_equal(
        strangeness(mine), strangeness(student(net, **options, autoencoder=convolutional, batch=4))
    )


def test_it_may_give_its_inputs_back_flat() -> None:
    shape, net = (2, 4, 4), lambda: nn.Sequential(nn.Flatten(), nn.Linear(32, 3))
    flat = student(
        net,
        blobs(20, shape=shape),
        auxiliary=blobs(9, shape=shape).x,
        autoencoder=lambda: nn.Sequential(nn.Flatten(), symmetric(32)),
    )
    assert strangeness(flat).shape == (9,)


@pytest.mark.parametrize(
    ("autoencoder", "text"),
    [
        (lambda: nn.Linear(4, 3), "the autoencoder does not fit the inputs: shape"),
        (lambda: nn.Linear(5, 5), "cannot be multiplied"),
        (lambda: "small", "the autoencoder is of type str"),
        (nn.Identity, "the autoencoder does not fit the inputs: the model has no parameters to train"),
    ],
)
def test_one_that_does_not_fit_is_found_at_once(autoencoder: Any, text: str) -> None:
    with pytest.raises(TaskError) as error:
        student(with_batch_norm, autoencoder=autoencoder)
    assert text in str(error.value)
    assert "\n" not in str(error.value)


def test_the_default_has_a_bottleneck_unless_there_is_little_to_squeeze() -> None:
    def narrowest(inputs: int) -> int:
        return min(e.shape[0] for e in layouts.layout_of(symmetric(inputs)).entries)

    assert [narrowest(n) for n in (2, 64, 784)] == [2, 16, 16]
