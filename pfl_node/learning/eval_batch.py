"""The batch size of an evaluation, so that its outputs and activations fit into memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from pfl_node.learning.memory_limit import available_memory
from pfl_node.learning.samples import Samples, call, first

BUDGET = 1 << 28  # bytes of one evaluation step
SHARE = 8  # and at most one part in this many of the available memory
COPIES = 4  # copies of the output: log-probabilities, a transposed copy, the classes


def batch_for(module: nn.Module, data: Samples, largest: int) -> int:
    """At most `largest` samples, and no more than the budget allows; estimated with one sample."""
    if data.n == 1:
        return largest
    budget = min(BUDGET, available_memory() // SHARE)
    return max(1, min(largest, budget // max(1, _bytes_per_sample(module, data))))


def _bytes_per_sample(module: nn.Module, data: Samples) -> int:
    """Bytes of the outputs, times the copies that a loss makes, and of the largest input and output of a layer."""
    batch, layers = first(data, 1), [0]
    with _watched(module, layers), torch.inference_mode():
        output = call(module, batch.x)
    return COPIES * _bytes(output) + 2 * max(layers) + _bytes(batch.x)


@contextmanager
def _watched(module: nn.Module, layers: list[int]) -> Iterator[None]:
    """Within the context, collect the size of each layer's output."""

    def note(_: nn.Module, __: Any, output: Any) -> None:
        layers.append(_bytes(output))

    handles = [layer.register_forward_hook(note) for layer in module.modules() if layer is not module]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _bytes(output: Any) -> int:
    if isinstance(output, Tensor):
        return output.nbytes
    if isinstance(output, dict):
        return sum(map(_bytes, output.values()))
    return sum(map(_bytes, output)) if isinstance(output, tuple | list) else 0
