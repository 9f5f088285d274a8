"""Pieces that several of the networks are made of."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn


def named(**layers: nn.Module) -> nn.Sequential:
    """Layers in a row, each with its name."""
    return nn.Sequential(OrderedDict(layers))


def halved(size: int, times: int, *, loses: int = 0) -> int:
    """What is left of a side after so many rounds of a convolution that `loses` pixels and a pooling by 2."""
    for _ in range(times):
        size = (size - loses) // 2
    return size
