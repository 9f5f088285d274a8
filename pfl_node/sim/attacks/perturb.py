"""What bad nodes do to the models they send. Pure; knows only vectors."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from pfl_node.model import Model
from pfl_node.predictions import counts, novelty, outputs, pack

LEAST = 2  # models without which there is no spread to hide in


def times(model: Model, factor: float) -> Model:
    """-1 turns the model round (Li et al. 2019, RSA, section 5); a large factor outweighs all others."""
    return Model(model.layout, (model.vector * np.float32(factor)).astype(np.float32))


def noisy(model: Model, strength: float, seed: int) -> Model:
    """Gaussian noise, so many times as large as the numbers of the model are spread."""
    chance = np.random.default_rng(seed)
    spread = float(np.std(model.vector.astype(np.float64))) * strength
    noise = chance.normal(0.0, spread, model.layout.size)
    return Model(model.layout, (model.vector + noise).astype(np.float32))


def not_a_number(model: Model) -> Model:
    vector = model.vector.copy()
    vector[: max(1, vector.size // 100)] = np.nan
    return Model(model.layout, vector)


def all_known(model: Model) -> Model:
    """Predictions that say that no sample is strange to their sender; a model is left as it is."""
    if model.layout.part != "predictions" or not novelty(model).any():
        return model
    tiny = np.full_like(novelty(model), np.finfo(np.float16).tiny)
    return pack(model.layout, outputs(model), tiny, counts(model))


def alie(known: Sequence[Model], z: float) -> Model:
    """A Little Is Enough (Baruch et al. 2019, Algorithm 3): in every coordinate z standard deviations of the
    honest models from their mean: near enough to be taken for one of them."""
    stacked = np.stack([model.vector for model in known]).astype(np.float64)
    return Model(known[0].layout, (stacked.mean(0) - z * stacked.std(0)).astype(np.float32))


def z_max(nodes: int, bad: int) -> float:
    """Baruch et al. 2019, Algorithm 3, lines 1-2: the largest z for which enough honest ones are further out."""
    honest = nodes - bad
    needed = nodes // 2 + 1 - bad  # honest ones that must be won for a majority
    if honest < 1 or needed < 1:
        return 1.5  # they are the majority already
    share = (honest - needed) / honest
    return NormalDist().inv_cdf(min(max(share, 0.5), 0.999))
