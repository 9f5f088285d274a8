"""Datasets and a task that worker processes can import."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from pfl_node.learning.task import Task

CLASSES = 3


class Images(Dataset[tuple[Tensor, int]]):
    """Images that are computed when they are read; records how often each was read in this process."""

    def __init__(self, n: int, *, augment: bool = True, shape: tuple[int, ...] = (2, 6, 6)) -> None:
        self.n, self.augment, self.shape = n, augment, shape
        self.seen: list[tuple[int, bytes]] = []

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        label = index % CLASSES
        x = torch.randn(self.shape, generator=torch.Generator().manual_seed(index)) + 2.0 * label
        if self.augment:
            x = x.flip(-1) if random.random() < 0.5 else x
            x = x + 0.1 * torch.randn(()) + 0.1 * float(np.random.standard_normal())
        self.seen.append((index, x.numpy().tobytes()))
        return x, label


class Failing(Images):
    """Sample 13 cannot be read."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if index == 13:
            raise OSError("broken file")
        return super().__getitem__(index)


class Fatal(Images):
    """Reading sample 7 in a worker process ends the process."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        import os

        if index == 7 and torch.utils.data.get_worker_info() is not None:
            os._exit(3)
        return super().__getitem__(index)


def net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3), nn.Linear(4 * 4 * 4, CLASSES)
    )


def task(data: Any, **more: Any) -> Task:
    return Task("lazy", net, data, **{"val": Images(9, augment=False), **more})
