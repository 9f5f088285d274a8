"""Tasks without an accuracy: one with a metric of its own, one with only a loss."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def auc(outputs: Tensor, y: Tensor) -> float:
    """The share of pairs of a positive and a negative sample that are in the right order."""
    good, bad = outputs[y == 1], outputs[y == 0]
    return float((good.view(-1, 1) > bad.view(1, -1)).float().mean())


def bce(output: Tensor, y: Tensor) -> Tensor:
    return nn.functional.binary_cross_entropy_with_logits(output.squeeze(1), y.float())


def risk(index: int | None = None, best: str = "auc") -> dict[str, Any]:
    chance = torch.Generator().manual_seed(index or 0)
    y = (torch.arange(90) % 5 == 0).long()
    x = torch.randn(90, 4, generator=chance) + y.view(-1, 1)
    return {"model": lambda: nn.Linear(4, 1), "train": (x, y), "loss": bce, "metrics": {"auc": auc}, "best": best}


def forecast(index: int | None = None) -> dict[str, Any]:
    chance = torch.Generator().manual_seed(index or 0)
    x = torch.randn(60, 4, generator=chance)
    return {"model": lambda: nn.Linear(4, 1), "train": (x, x.sum(1, keepdim=True)), "loss": nn.MSELoss()}
