"""Small modules and tasks that the tests of this folder learn with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from pfl_node.learning.learner import Learner
from pfl_node.learning.task import Data, Task
from pfl_node.settings import TrainSettings

CLASSES = 3


def plain() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, CLASSES))


def with_batch_norm() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, CLASSES), nn.BatchNorm1d(CLASSES)
    )


def with_dropout() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.Dropout(0.5), nn.Linear(5, CLASSES))


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3),
        nn.Flatten(),
        nn.Linear(6 * 1 * 1, CLASSES),
    )


class Tied(nn.Module):
    """One matrix in two places, an integer and a boolean buffer, and one that stays at home."""

    calls: Tensor
    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.out = nn.Linear(4, CLASSES)
        self.register_buffer("calls", torch.tensor(7))
        self.register_buffer("mask", torch.tensor([True, False, True, True]))
        self.register_buffer("home", torch.ones(4), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.calls.add_(1)
        hidden = self.second(self.first(x.flatten(1)).relu() * self.mask)
        return self.out(hidden)  # type: ignore[no-any-return]


def blobs(n: int = 40, shape: tuple[int, ...] = (4,), seed: int = 0) -> Data:
    """Three classes that a small model can tell apart."""
    chance = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % CLASSES
    x = torch.randn(n, *shape, generator=chance) + 2.0 * y.view(-1, *[1] * len(shape)).float()
    return Data(x, y)


def task(model: Callable[[], nn.Module] = plain, data: Data | None = None, **more: Any) -> Task:
    data = data or blobs()
    return Task("blobs", model, data, **{"val": data, **more})


def learner(
    model: Callable[[], nn.Module] = plain,
    data: Data | None = None,
    task_options: dict[str, Any] | None = None,
    **settings: Any,
) -> Learner:
    return Learner(task(model, data, **task_options or {}), TrainSettings(**settings), "cpu")


def student(model: Callable[[], nn.Module] = plain, data: Data | None = None, **options: Any) -> Learner:
    """A learner with auxiliary samples; options are the task's or settings of training."""
    settings = {key: options.pop(key) for key in TrainSettings.model_fields if key in options}
    return learner(model, data, {"auxiliary": blobs(30, seed=9).x, **options}, **settings)
