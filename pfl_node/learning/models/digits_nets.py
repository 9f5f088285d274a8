"""The networks of the embedded task, for images of 8x8 pixels."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn


def mlp() -> nn.Module:
    from torch import nn

    layers = {"flat": nn.Flatten(), "hidden": nn.Linear(64, 32), "relu": nn.ReLU(), "head": nn.Linear(32, 10)}
    return nn.Sequential(OrderedDict(layers))


def cnn() -> nn.Module:
    from torch import nn

    def block(channels_in: int, channels: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(channels_in, channels, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))

    layers = {"near": block(1, 16), "far": block(16, 32), "flat": nn.Flatten(), "head": nn.Linear(128, 10)}
    return nn.Sequential(OrderedDict(layers))


MODELS: dict[str, Callable[[], nn.Module]] = {"mlp": mlp, "cnn": cnn}
