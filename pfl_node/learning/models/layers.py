"""Building blocks of several networks."""

from __future__ import annotations

from collections import OrderedDict
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function


def named(**layers: nn.Module) -> nn.Sequential:
    """A Sequential of named layers."""
    return nn.Sequential(OrderedDict(layers))


def halved(size: int, times: int, *, loses: int = 0) -> int:
    """The side of an image after `times` convolutions that lose `loses` pixels, each with a pooling by 2."""
    for _ in range(times):
        size = (size - loses) // 2
    return size


class MaxPool(nn.MaxPool2d):
    """Max pooling of `size` x `size` pixels, faster than torch's on the CPU, with the same values and gradients.

    torch looks for the index of each maximum, which is slow unless the channels are the last dimension. Without
    gradients nobody needs the index: take the maximum over rows, then over columns."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type != "cpu" or torch.compiler.is_compiling():
            return nn.functional.max_pool2d(x, self.size)
        k = self.size
        if torch.is_grad_enabled():
            pooled: Tensor = _ChannelsLastPool.apply(x, k)[0]
            return pooled
        height, width = (side - side % k for side in x.shape[-2:])
        rows = reduce(torch.maximum, [x[..., i:height:k, :width] for i in range(k)])
        return reduce(torch.maximum, [rows[..., i::k] for i in range(k)])


class _ChannelsLastPool(Function):
    """torch's pooling of a copy whose channels are the last dimension. Result and gradient have them first:
    the other layers are slow with channels last."""

    @staticmethod
    def forward(x: Tensor, size: int) -> tuple[Tensor, Tensor]:
        channels_last = x.contiguous(memory_format=torch.channels_last)
        pooled, indices = nn.functional.max_pool2d_with_indices(channels_last, [size, size])
        return pooled.contiguous(), indices.contiguous()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int], output: tuple[Tensor, Tensor]) -> None:
        x, ctx.size = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(x, output[1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        x, indices = ctx.saved_tensors
        k = [ctx.size] * 2
        grad = torch.ops.aten.max_pool2d_with_indices_backward(
            grads[0].contiguous(), x, k, k, [0, 0], [1, 1], False, indices
        )
        return grad, None

    @staticmethod
    def vmap(
        _: Any, in_dims: tuple[int, None], x: Tensor, size: int
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        several = x.movedim(in_dims[0], 0)
        found = _ChannelsLastPool.apply(several.flatten(0, 1), size)
        return tuple(one.unflatten(0, several.shape[:2]) for one in found), (0, 0)
