"""Averaging of models, one pass over memory. Pure; knows only vectors."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np

from pfl_node.errors import LayoutMismatch
from pfl_node.model import Model
from pfl_node.settings import AggregateSettings

BLOCK = 1 << 15  # numbers; a block of the result and of one input stay in the cache


def mean(models: Sequence[Model], weights: Sequence[float] | None = None) -> Model:
    """The (weighted) mean. A model with a NaN or an infinity is left out; if none is left, that is an error."""
    if weights is not None and len(weights) != len(models):
        raise ValueError(f"{len(models)} models but {len(weights)} weights")
    if weights is not None and not all(0 <= w < inf for w in weights):
        raise ValueError("a weight is negative or not finite")
    if len({m.layout.digest for m in models}) > 1:
        raise LayoutMismatch("models of different layouts cannot be averaged")
    pairs = [(m, w) for m, w in zip(models, weights or [1.0] * len(models), strict=True) if m.is_finite()]
    total = sum(w for _, w in pairs)
    if not pairs or total <= 0:
        raise ValueError("nothing to average: no finite model with a weight above zero")
    if len(pairs) == 1:
        return pairs[0][0]
    out = np.empty(models[0].layout.size, dtype=np.float32)
    shares = np.array([w / total for _, w in pairs], dtype=np.float32)
    scratch = np.empty(min(BLOCK, out.size), dtype=np.float32)
    for start in range(0, out.size, BLOCK):
        block = out[start : start + BLOCK]
        np.multiply(pairs[0][0].vector[start : start + BLOCK], shares[0], out=block)
        for (model, _), share in zip(pairs[1:], shares[1:], strict=True):
            part = scratch[: block.size]
            np.multiply(model.vector[start : start + BLOCK], share, out=part)
            block += part
    return Model(models[0].layout, out)


def combine(
    settings: AggregateSettings,
    mine: Model,
    others: Sequence[Model],
    weights: Sequence[float] | None = None,
    own: float = 1.0,
) -> Model:
    """What `Average` answers."""
    models = [mine, *others]
    shares = [own, *(weights or [1.0] * len(others))]
    if not any(w > 0 and m.is_finite() for m, w in zip(models, shares, strict=True)):
        return mine
    return mean(models, shares)
