"""Pieces that several of the networks are made of."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn


def named(**layers: nn.Module) -> nn.Sequential:
    """Layers in a row, each with its name."""
    return nn.Sequential(OrderedDict(layers))


def halved(size: int, times: int, *, loses: int = 0) -> int:
    """What is left of a side after so many rounds of a convolution that `loses` pixels and a pooling by 2."""
    for _ in range(times):
        size = (size - loses) // 2
    return size


class ChannelsLast(nn.Module):
    """From here on the numbers of a pixel lie side by side. Changes no number: a CPU pools them three times as fast,
    which is a quarter of the time of a small network."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        _, channels, height, width = x.shape
        if channels > 1:
            return x
        # with one channel both orders are the same: the strides alone say which is meant
        return x.as_strided(x.shape, (height * width, 1, width, 1))
