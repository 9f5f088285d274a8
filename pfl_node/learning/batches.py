"""The batches of one training, from a seed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice

import torch
from torch import Tensor

from pfl_node.learning.seeding import generator
from pfl_node.learning.train_options import Options


def batches(samples: int, options: Options, seed: int, *, single: bool = True) -> Iterator[Tensor]:
    """Index tensors, with a new permutation for every epoch.

    With epochs, the last, smaller batch of an epoch is included; with steps, all batches are full. A remainder of
    one sample is skipped if `single` is false (batch normalisation cannot use it).
    """
    size = min(options.batch, samples)
    chance = generator(seed)
    if options.steps is not None:
        full = (piece for piece in _pieces(samples, size, chance) if len(piece) == size)
        yield from islice(full, options.steps)
        return
    per_epoch = -(-samples // size)
    for piece in islice(_pieces(samples, size, chance), max(1, round(options.epochs * per_epoch))):
        if len(piece) > 1 or size == 1 or single:
            yield piece


def _pieces(samples: int, size: int, chance: torch.Generator) -> Iterator[Tensor]:
    for _ in count():
        yield from torch.split(torch.randperm(samples, generator=chance), size)
