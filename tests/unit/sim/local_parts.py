"""Tasks of which a part stays on the node: FedBN, a frozen backbone, LoRA, and a site's own scaler."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pfl_node.learning.task import Data, Task

CLASSES, FEATURES, HIDDEN = 2, 4, 8


def data(index: int, seed: int = 0, offset: float = 0.0, n: int = 24) -> Data:
    """Two classes that a small model can tell apart, shifted by `offset`."""
    chance = torch.Generator().manual_seed(1000 * seed + index)
    y = torch.arange(n) % CLASSES
    return Data(torch.randn(n, FEATURES, generator=chance) + 3.0 * y.view(-1, 1) + offset, y)


def made(name: str, index: int, model: Any, offset: float = 0.0, **more: Any) -> Task:
    train, test = data(index, 1, offset), data(index, 2, offset)
    given = {"auxiliary": data(99).x, "train_defaults": {"lr": 0.1, "epochs": 2}, "cluster": index % 2, **more}
    return Task(name, model, train, val=test, test=test, **given)


def fedbn(index: int) -> Task:
    def model() -> nn.Module:
        layers = {
            "fc": nn.Linear(FEATURES, HIDDEN),
            "bn1": nn.BatchNorm1d(HIDDEN),
            "out": nn.Linear(HIDDEN, CLASSES),
        }
        return Chain(layers)

    return made("fedbn", index, model, offset=5.0 * index, private=["*.bn*"])


class Chain(nn.ModuleDict):
    def forward(self, x: Tensor) -> Tensor:
        for layer in self.values():
            x = layer(x)
        return x


def backbone() -> nn.Module:
    """The same on every node, as a file of pretrained weights would be."""
    with torch.random.fork_rng():
        torch.manual_seed(7)
        return nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.BatchNorm1d(HIDDEN), nn.ReLU()).requires_grad_(False)


def frozen(index: int) -> Task:
    def model() -> nn.Module:
        return Chain({"body": backbone(), "mix": nn.Linear(HIDDEN, HIDDEN), "out": nn.Linear(HIDDEN, CLASSES)})

    return made("frozen", index, model)


def linear_probe(index: int) -> Task:
    """The head is all that is trained: the core of a policy that splits the model is empty."""
    return made("linear_probe", index, lambda: Chain({"body": backbone(), "out": nn.Linear(HIDDEN, CLASSES)}))


class Lora(nn.Module):
    def __init__(self, base: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.a.T @ self.b.T  # type: ignore[no-any-return]


def lora(index: int) -> Task:
    def model() -> nn.Module:
        first, last = backbone()[0], nn.Linear(HIDDEN, CLASSES)  # type: ignore[index]
        nn.init.constant_(last.weight, 0.1)
        nn.init.zeros_(last.bias)
        return Chain({"first": Lora(first), "relu": nn.ReLU(), "last": Lora(last)})

    return made("lora", index, model)


class Scaler(nn.Module):
    mean: Tensor

    def __init__(self, x: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", x.mean(0))

    def forward(self, x: Tensor) -> Tensor:
        return x - self.mean


def scaler(index: int) -> Task:
    """Sites measure in units of their own; without its own scaler, a site's model sees only noise."""
    offset = 100.0 * index
    own = data(index, 1, offset).x

    def model() -> nn.Module:
        return Chain({"scaler": Scaler(own), "out": nn.Linear(FEATURES, CLASSES)})

    return made("scaler", index, model, offset)


def everything(index: int) -> Task:
    offset = 100.0 * index
    own = data(index, 1, offset).x

    def model() -> nn.Module:
        first, last = Lora(backbone()[0]), nn.Linear(HIDDEN, CLASSES)  # type: ignore[index]
        mix = nn.Linear(HIDDEN, HIDDEN, bias=False)
        return Chain(
            {"scaler": Scaler(own), "first": first, "bn1": nn.BatchNorm1d(HIDDEN), "mix": mix, "out": last}
        )

    return made("everything", index, model, offset, private="bn1")


def other_base(index: int) -> Task:
    def model() -> nn.Module:
        body = backbone()
        nn.init.constant_(body[0].bias, float(index))  # type: ignore[index]
        return Chain({"body": body, "out": nn.Linear(HIDDEN, CLASSES)})

    return made("other_base", index, model)
