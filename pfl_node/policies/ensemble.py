"""Aggregate the predictions of many clients into one teacher: the weighting schemes of Eriksson 2022, section 3.1.

Predictions that are not probabilities are excluded first. Pure; numpy only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from pfl_node.aggregate import bounded
from pfl_node.errors import LayoutMismatch
from pfl_node.model import Model
from pfl_node.predictions import counts, novelty, outputs, pack

How = Literal["w0", "w1", "w2"]
Array = npt.NDArray[np.float64]

BLOCK = 50  # samples; the batch size of a student in the thesis
SLACK = 0.05  # tolerance of a row's sum, for lossy encodings


def teacher(
    how: How,
    said: Sequence[Model],
    samples: Sequence[int],
    beta: float = 6.0,
    claim: float | None = None,
    most: float = 1.0,
    gamma: float = 1.0,
    seed: Sequence[int] = (0,),
) -> Model | None:
    """The weighted sum of the predictions; its rows sum to one, except with w1 (equation 3.2). `samples` are the
    clients' reported numbers of training samples; `claim` bounds each count, in total or per class, to this
    multiple of the median. With w2, no client decides more than the share `most` of the samples. If `gamma` < 1,
    that share of the clients, drawn with `seed`, teaches each block of samples. None: no prediction is usable."""
    if len({s.layout.digest for s in said}) > 1:
        raise LayoutMismatch("predictions about different samples cannot be put together")
    sound = [(s, n) for s, n in zip(said, samples, strict=True) if is_sound(s)]
    if not sound:
        return None
    said = [s for s, _ in sound]
    w0 = by_size(believed([n for _, n in sound], claim))
    match how:
        case "w0":
            weights = w0
        case "w1":
            weights = by_class(said, w0, claim)
        case "w2":
            weights = by_novelty(said, w0, beta, most)
    if gamma < 1:
        weights = of_some(weights, outputs(said[0]).shape[0], gamma, seed)
    rows = mixed(said, weights)
    empty = rows.sum(1) <= 0  # w1: all predicted classes are unknown to their clients
    if empty.any():
        rows[empty] = mixed(said, w0)[empty]
    return pack(said[0].layout, rows if how == "w1" else rows / rows.sum(1, keepdims=True))


def is_sound(said: Model) -> bool:
    """Finite and non-negative, with rows that are probabilities."""
    if not said.is_finite() or said.vector.min(initial=0.0) < 0:
        return False
    return bool(np.all(np.abs(outputs(said).sum(1, dtype=np.float64) - 1) <= SLACK))


def believed(samples: Sequence[float], claim: float | None) -> Sequence[float]:
    """Bound the reported numbers. Clients that report nothing do not count in the median."""
    claimed = [n for n in samples if n > 0]
    if claim is None or not claimed:
        return samples
    capped = iter(bounded(claimed, claim))
    return [next(capped) if n > 0 else n for n in samples]


def by_size(samples: Sequence[float]) -> Array:
    """w0, equation 3.1: N_k / N for all predictions of client k."""
    sizes = np.array(samples, np.float64).reshape(-1, 1, 1)
    return sizes / sizes.sum() if sizes.sum() > 0 else np.full_like(sizes, 1 / len(sizes))


def by_class(said: Sequence[Model], w0: Array, claim: float | None = None) -> Array:
    """w1, equation 3.2: N_k^c / sum_k N_k^c for the predictions of client k for class c."""
    own = np.stack([counts(s) for s in said]).astype(np.float64)[:, None, :]
    totals = own.sum((1, 2))
    shares = np.array(believed(totals.tolist(), claim)) / np.where(totals > 0, totals, 1.0)
    own *= shares[:, None, None]
    everybody = own.sum(0)
    # paper: 0 / 0 for a class that no client has; here: as w0, because all clients know equally little
    return np.where(everybody > 0, own / np.where(everybody > 0, everybody, 1.0), w0)


def by_novelty(said: Sequence[Model], w0: Array, beta: float, most: float = 1.0) -> Array:
    """w2, equation 3.4: novelty_k(x)^-beta for the prediction of client k for sample x, normalised over the
    clients."""
    strange = np.stack([novelty(s) for s in said]).astype(np.float64)[:, :, None]
    known = np.asarray(strange.any(1, keepdims=True))
    if not known.any():
        return w0
    # in logs, because the sixth powers of 1e-10 and 1e10 exceed the range of floats
    logs = np.where(known, -beta * np.log(np.maximum(strange, np.finfo(np.float32).tiny)), -np.inf)
    return not_above(most, logs, known[:, 0, 0])


def not_above(most: float, logs: Array, free: npt.NDArray[np.bool_]) -> Array:
    """The softmax of `logs` over the clients that are `free`, but with a mean weight of each client of at most
    `most`, or twice an equal share if that is more. Clients report their own novelties, and one to which no sample
    is novel would be the only teacher (of honest clients of digits, 5 to 50, none exceeded 0.36). The excess is
    distributed among the others in proportion, so that an expert keeps the largest weight on its own samples."""
    free, held, weights = free.copy(), np.zeros_like(logs), powers(logs, free)
    most = max(most, 2 / free.sum())
    while (over := free & (weights.mean((1, 2)) > most * (1 + 1e-9))).any():
        held[over] = weights[over] * (most / weights[over].mean((1, 2), keepdims=True))
        free &= ~over
        weights = held + powers(logs, free) * (1 - held.sum(0))
    return weights


def of_some(weights: Array, samples: int, gamma: float, seed: Sequence[int]) -> Array:
    """The weights of K_t, the share `gamma` of the clients (Algorithm 2)."""
    # paper: drawn at every distillation step; here: once for each BLOCK of samples, because there is one teacher
    chance, drawn = np.random.default_rng(list(seed)), max(1, round(gamma * len(weights)))
    blocks = [chance.permutation(len(weights)) < drawn for _ in range(-(-samples // BLOCK))]
    some = weights * np.repeat(np.array(blocks).T, BLOCK, axis=1)[:, :samples, None]
    total = some.sum(0)
    return np.asarray(some / np.where(total > 0, total, 1.0), np.float64)


def powers(logs: Array, free: npt.NDArray[np.bool_]) -> Array:
    known = np.where(free[:, None, None], logs, -np.inf)
    found = np.exp(known - known.max(0))
    return np.asarray(found / found.sum(0), np.float64)


def mixed(said: Sequence[Model], weights: Array) -> Array:
    """One client at a time, because all predictions together may be large."""
    rows = np.zeros(outputs(said[0]).shape, np.float64)
    for one, weight in zip(said, weights, strict=True):
        rows += weight * outputs(one)
    return rows
