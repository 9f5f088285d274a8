"""Gradients of single samples: what mixes the samples of a batch is refused, what is only random is not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pfl_node.errors import TaskError
from pfl_node.learning.learner import Learner
from pfl_node.learning.task import Task
from pfl_node.protocol.privacy.dp_account import DpAccount
from pfl_node.settings import TrainSettings
from pfl_node.settings.sections import PrivacySettings
from tests.unit.learning.nets import blobs, convolutions, plain, task, with_dropout

N = 40
WEIGHTS = torch.tensor([1.0, 5.0, 20.0])


def private(given: Task) -> Learner:
    settings = PrivacySettings(dp=True)
    return Learner(given, TrainSettings(batch=N, steps=2), "cpu", settings, DpAccount(secret="s"))


def trained(given: Task) -> Any:
    me = private(given)
    return me.train(me.fresh(0), seed=1).vector


class Rows:
    """A dataset; with `noise`, a row differs each time it is read."""

    def __init__(self, noise: float = 0.0) -> None:
        self.data, self.noise = blobs(N), noise

    def __len__(self) -> int:
        return N

    def __getitem__(self, at: int) -> tuple[Tensor, int]:
        x = self.data.x[at]
        return x + self.noise * torch.randn(x.shape), int(self.data.y[at])


def mixup(rows: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    x, y = torch.stack([x for x, _ in rows]), torch.tensor([y for _, y in rows])
    return 0.8 * x + 0.2 * x.roll(1, 0), y


def stacked(rows: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    return torch.stack([x for x, _ in rows]), torch.tensor([y for _, y in rows])


class Centred(nn.Module):
    """Subtracts the mean of the batch."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class Spread(nn.Module):
    """Dropout that the check cannot switch off by its class."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(x, 0.5, self.training)


def total(output: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output, y, reduction="sum")


def of_rows(collate: Any, noise: float = 0.0) -> Task:
    rows = Rows(noise)
    return Task("rows", plain, rows, val=rows, collate=collate)


@pytest.mark.parametrize(
    "given",
    [
        of_rows(mixup),
        task(loss=nn.CrossEntropyLoss(WEIGHTS)),
        task(loss=total),
        task(lambda: nn.Sequential(plain(), Centred())),
        task(lambda: nn.Sequential(with_dropout(), Centred())),
    ],
    ids=["mixup", "weighted loss", "summed loss", "layer", "layer after dropout"],
)
def test_what_mixes_the_samples_of_a_batch_is_refused(given: Task) -> None:
    with pytest.raises(TaskError, match="depends on the other samples of its batch"):
        trained(given)


@pytest.mark.parametrize(
    "given",
    [
        of_rows(stacked),
        of_rows(stacked, noise=1.0),
        task(loss=nn.CrossEntropyLoss()),
        task(with_dropout),
        task(lambda: nn.Sequential(plain(), Spread())),
        task(convolutions, blobs(N, (2, 6, 6))),
        task(data=blobs(1)),
    ],
    ids=["collate", "random transform", "loss", "dropout", "own dropout", "convolutions", "one sample"],
)
def test_random_layers_and_transforms_are_not_taken_for_mixing(given: Task) -> None:
    trained(given)


class Squeezed(nn.Module):
    """Loses the dimension of a batch of one sample."""

    def forward(self, x: Tensor) -> Tensor:
        return x.squeeze(0)


def test_a_model_that_fails_for_one_sample_is_refused_in_one_line() -> None:
    with pytest.raises(TaskError, match="a batch of one sample, which may be drawn, fails"):
        trained(task(lambda: nn.Sequential(plain(), Squeezed()), loss=nn.CrossEntropyLoss()))


def test_the_check_does_not_change_the_training() -> None:
    checked, unchecked = private(task(with_dropout)), private(task(with_dropout))
    assert unchecked._private
    unchecked._private._compared = True
    start = checked.fresh(0)
    assert checked.train(start, seed=1) == unchecked.train(start, seed=1)
