"""A task whose model has a chosen size, so that transfers take long and training does not."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

PIXELS, CLASSES, SAMPLES = 64, 10, 64


def large(megabytes: float = 10.0, index: int | None = None, seed: int = 0) -> dict[str, Any]:
    width = round((megabytes * 1e6 / 4) ** 0.5) - (PIXELS + CLASSES) // 2

    def model() -> nn.Module:
        first, second = nn.Linear(PIXELS, width), nn.Linear(width, width)
        return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Linear(width, CLASSES))

    chance = torch.Generator().manual_seed(seed + (index or 0))
    data = torch.rand(SAMPLES, PIXELS, generator=chance), torch.randint(CLASSES, (SAMPLES,), generator=chance)
    return {"model": model, "train": data, "test": data, "train_defaults": {"epochs": 1, "lr": 0.01}}
