"""Building blocks of several networks."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn


def named(**layers: nn.Module) -> nn.Sequential:
    """A Sequential of named layers."""
    return nn.Sequential(OrderedDict(layers))


def halved(size: int, times: int, *, loses: int = 0) -> int:
    """The side of an image after `times` convolutions that lose `loses` pixels, each with a pooling by 2."""
    for _ in range(times):
        size = (size - loses) // 2
    return size
