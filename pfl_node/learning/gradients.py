"""The gradient of the loss at a model, and the point beyond a model at which a training starts (lookahead)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pfl_node.learning.precision import autocast
from pfl_node.learning.samples import Samples, call
from pfl_node.learning.seeding import generator, seed_layers
from pfl_node.learning.train_options import Options
from pfl_node.learning.training_loop import Between
from pfl_node.learning.workspace import Only, Workspace, stretches
from pfl_node.model import Model, Vector


def gradient(
    space: Workspace,
    data: Samples,
    loss: Callable[[Any, Any], Tensor],
    options: Options,
    samples: int | None,
    seed: int,
    between: Between,
) -> Vector:
    """The mean gradient over samples that the seed determines, read in batches. Layers such as dropout and random
    transforms are seeded too, so that the same seed is the same function of the model."""
    size = min(options.batch if samples is None else samples, data.n)
    lone = min(options.batch, size) == 1
    chosen = torch.randperm(data.n, generator=generator(seed))[:size]
    batches = [b for b in torch.split(chosen, options.batch) if len(b) > 1 or lone or not space.batch_norms]
    total = sum(map(len, batches))
    space.prepare(None, lone_samples=lone)
    space.grad.zero_()
    seed_layers(seed, space.flat.device)
    precision = "fp32" if options.precision == "fp16" else options.precision  # small gradients would become zero
    for batch in data.batches(batches, seed):
        with autocast(precision, space.flat.device):
            found = loss(call(space.module, batch.x), batch.target) * (batch.n / total)
        found.backward()  # type: ignore[no-untyped-call]
        between()
    vector: Vector = space.grad[: space.layout.size].cpu().numpy().copy()
    return vector


def ahead_of(model: Model, past: Model | None, share: float, only: Only) -> Model:
    """The starting point of opposite lookahead (Li et al. 2024, OledFL): beyond the model, away from the past one,
    in the parameters to be trained. Buffers stay: a variance must not become negative. Without a past one, the
    model itself."""
    if past is None:
        return model
    vector = model.vector.copy()
    for piece in stretches(model.layout, only):
        vector[piece] += share * (model.vector[piece] - past.vector[piece])
    return Model(model.layout, vector)
