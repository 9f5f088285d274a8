"""Building blocks of several networks."""

from __future__ import annotations

from collections import OrderedDict
from functools import reduce

import torch
from torch import Tensor, nn


def named(**layers: nn.Module) -> nn.Sequential:
    """A Sequential of named layers."""
    return nn.Sequential(OrderedDict(layers))


def halved(size: int, times: int, *, loses: int = 0) -> int:
    """The side of an image after `times` convolutions that lose `loses` pixels, each with a pooling by 2."""
    for _ in range(times):
        size = (size - loses) // 2
    return size


class MaxPool(nn.MaxPool2d):
    """Max pooling of `size` x `size` pixels, evaluated faster than by torch on the CPU, with the same values.

    torch's pooling looks for the index of each maximum and takes half the time of evaluating a small network.
    Without gradients nobody needs the index: take the maximum over rows, then over columns."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled() or x.device.type != "cpu" or torch.compiler.is_compiling():
            return nn.functional.max_pool2d(x, self.size)
        k = self.size
        height, width = (side - side % k for side in x.shape[-2:])
        rows = reduce(torch.maximum, [x[..., i:height:k, :width] for i in range(k)])
        return reduce(torch.maximum, [rows[..., i::k] for i in range(k)])
