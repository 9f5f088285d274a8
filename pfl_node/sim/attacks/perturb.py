"""Perturbations that malicious nodes apply to the models they send. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from pfl_node.model import Model
from pfl_node.predictions import counts, novelty, outputs, pack

MIN_MODELS = 2  # a standard deviation needs at least two


def scaled(model: Model, factor: float) -> Model:
    """-1 flips the sign (Li et al. 2019, RSA, section 5); a large factor dominates an average."""
    return Model(model.layout, (model.vector * np.float32(factor)).astype(np.float32))


def noisy(model: Model, strength: float, seed: int) -> Model:
    """Add Gaussian noise of `strength` times the standard deviation of the model's parameters."""
    chance = np.random.default_rng(seed)
    spread = float(np.std(model.vector.astype(np.float64))) * strength
    noise = chance.normal(0.0, spread, model.layout.size)
    return Model(model.layout, (model.vector + noise).astype(np.float32))


def with_nan(model: Model) -> Model:
    vector = model.vector.copy()
    vector[: max(1, vector.size // 100)] = np.nan
    return Model(model.layout, vector)


def without_novelty(model: Model) -> Model:
    """Predictions that claim a novelty of almost zero for every sample; other models are unchanged."""
    if model.layout.part != "predictions" or not novelty(model).any():
        return model
    tiny = np.full_like(novelty(model), np.finfo(np.float16).tiny)
    return pack(model.layout, outputs(model), tiny, counts(model))


def alie(known: Sequence[Model], z: float) -> Model:
    """A Little Is Enough (Baruch et al. 2019, Algorithm 3): in every coordinate, z standard deviations from the
    mean of the known models, which is close enough to pass for an honest one."""
    stacked = np.stack([model.vector for model in known]).astype(np.float64)
    return Model(known[0].layout, (stacked.mean(0) - z * stacked.std(0)).astype(np.float32))


def z_max(nodes: int, malicious: int) -> float:
    """Baruch et al. 2019, Algorithm 3, lines 1-2: the largest z with enough honest models further out."""
    honest = nodes - malicious
    needed = nodes // 2 + 1 - malicious  # honest supporters for a majority
    if honest < 1 or needed < 1:
        return 1.5  # the malicious nodes are a majority
    share = (honest - needed) / honest
    return NormalDist().inv_cdf(min(max(share, 0.5), 0.999))
