"""Aggregation rules: the weighted mean, and rules that tolerate Byzantine models. Pure functions of vectors.

Every coordinate of a result lies within the range of the models. Sums are float64, so that large values neither
overflow nor absorb the others. Median, trimmed mean and Krum ignore weights, because peers often report their own;
a weight of 0 excludes a model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from math import inf, sqrt
from statistics import median as median_of
from statistics import median_low
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from pfl_node.errors import LayoutMismatch
from pfl_node.model import Indices, Model, PartialModel, Vector

BLOCK = 1 << 15  # numbers of one model at a time, so that intermediate results stay in the cache
STACKED = 1 << 18  # numbers of all models together, for rules that compare the models

Numbers = npt.NDArray[np.float64]
Claim = float | Literal["auto"] | None
RuleName = Literal["mean", "median", "trimmed_mean", "krum", "multi_krum", "clipping"]
AUTO = 10.0  # times the median
WHOLE: tuple[RuleName, ...] = ("krum", "multi_krum")  # rules that compare whole models


class Rule(Protocol):
    """The `aggregate` section of the settings."""

    @property
    def rule(self) -> RuleName: ...
    @property
    def byzantine(self) -> int: ...
    @property
    def clip(self) -> float | None: ...
    @property
    def claim(self) -> Claim: ...


def combine(
    settings: Rule,
    mine: Model,
    others: Sequence[Model],
    weights: Sequence[float] | None = None,
    own: float = 1.0,
    *,
    claimed: bool = False,
) -> Model:
    """The answer to `Average`. Models that are not finite or have no weight are excluded first. Weights that peers
    `claimed` are bounded by the settings.

    If `own` is 0, my model is only the centre of clipping, and the result if no other model is usable. If my model
    is not finite, the others are combined without it, and clipping, which then has no centre, becomes the median.

    A partial model is completed with my numbers. But a fragment, whose sender says nothing about the absent ones,
    counts only where it has numbers, or with mine everywhere the others would be outvoted. Krum compares whole
    models, so that a fragment is completed there: `check_fragments` refuses this.
    """
    given = _counted(others, weights)
    _check([mine, *others], [own, *given])
    centred = mine.is_finite()
    if not centred or settings.rule != "mean":  # the mean completes partial models itself, block by block
        whole = not centred or settings.rule in WHOLE
        others = [m if _is_fragment(m) and not whole else m.over(mine) for m in others]
    usable = [(m, w) for m, w in zip(others, given, strict=True) if w > 0 and m.is_finite()]
    if not usable:
        return mine
    models, shares = [m for m, _ in usable], [w for _, w in usable]
    if claimed and (factor := limit(settings.claim)) is not None:
        shares = bounded(shares, factor, own)
    if centred and settings.rule == "clipping":
        return clipping(mine, models, settings.byzantine, settings.clip, shares, own)
    if centred and own > 0:
        models, shares = [mine, *models], [own, *shares]
    return _by_rule(settings, models, shares, mine)


def _by_rule(settings: Rule, models: Sequence[Model], shares: Sequence[float], mine: Model) -> Model:
    if settings.rule != "mean" and any(map(_is_fragment, models)):
        return _trimmed_known(models, settings.byzantine if settings.rule == "trimmed_mean" else len(models), mine)
    match settings.rule:
        case "mean":
            partial = any(isinstance(m, PartialModel) for m in models)
            return _blend_known(models, _shares(shares), mine) if partial else _blend(models, _shares(shares))
        case "median" | "clipping":
            return median(models)
        case "trimmed_mean":
            return trimmed_mean(models, settings.byzantine)
        case "krum":
            return krum(models, settings.byzantine)
        case "multi_krum":
            return multi_krum(models, settings.byzantine)


def limit(claim: Claim, *, exact: bool = False) -> float | None:
    """`aggregate.claim` as a multiple of the median, for a policy; None: no limit."""
    return (None if exact else AUTO) if claim == "auto" else claim


def bounded(weights: Sequence[float], factor: float, own: float = 0.0) -> list[float]:
    """Limit each weight to `factor` times the median weight, so that a peer that claims a billion samples does not
    outweigh all others. My own weight, which is trusted, is included. Of an even number the lower median counts:
    otherwise a single liar would be its own reference."""
    most = factor * (median_low([*weights, own]) if own > 0 else median_of(weights))
    return [min(w, most) for w in weights]


def mean(models: Sequence[Model], weights: Sequence[float] | None = None) -> Model:
    """The weighted mean of the finite models; an error if there is none."""
    given = _counted(models, weights)
    _check(models, given)
    usable = [(m, w) for m, w in zip(models, given, strict=True) if w > 0 and m.is_finite()]
    if not usable:
        raise ValueError("nothing to average: no finite model with a weight above zero")
    return _blend([m for m, _ in usable], _shares([w for _, w in usable]))


def median(models: Sequence[Model]) -> Model:
    """The coordinate-wise median (Yin et al. 2018); of an even number, the mean of the middle two. If more than
    half of the models are honest, each coordinate lies between two honest ones. Of two models it is the mean."""
    return _trimmed(models, (len(models) - 1) // 2)


def trimmed_mean(models: Sequence[Model], byzantine: int) -> Model:
    """The mean of each coordinate without its `byzantine` largest and smallest values (Yin et al. 2018); at least
    one or two values remain, which is the median. If there are at most `byzantine` bad models, each coordinate
    lies between two honest ones. Of two models it is the mean."""
    return _trimmed(models, min(byzantine, (len(models) - 1) // 2))


def krum(models: Sequence[Model], byzantine: int) -> Model:
    """The model closest to its n - f - 2 nearest neighbours (Blanchard et al. 2017); the first in case of a tie. f
    is `byzantine`, reduced until n >= 2 f + 3. The selected model is near honest ones, whoever sent it. Two models
    cannot be judged: the result is their mean."""
    if len(models) < 3:
        return _blend(models, _shares([1.0] * len(models)))
    return models[_ranked(models, byzantine)[0]]


def multi_krum(models: Sequence[Model], byzantine: int) -> Model:
    """The mean of all models except the `byzantine` with the worst Krum scores; more than half remain, and of two
    models both."""
    n = len(models)
    best = range(n) if n < 3 else sorted(_ranked(models, byzantine)[: n - min(byzantine, (n - 1) // 2)])
    return _blend([models[i] for i in best], _shares([1.0] * len(best)))


def clipping(
    mine: Model,
    others: Sequence[Model],
    byzantine: int,
    radius: float | None = None,
    weights: Sequence[float] | None = None,
    own: float = 1.0,
) -> Model:
    """Self-centred clipping (He, Karimireddy, Jaggi 2022): the weighted mean after moving each other model towards
    mine until it is within the radius. The result is then within the radius too.

    Without a radius, the 2 * byzantine farthest models are moved to the distance of the next one (CS+ of Gaucher,
    Dieuleveut, Hendrikx 2025), at least to that of the nearest. If there are at most that many bad models and one
    honest one, the radius is at most an honest distance. A single model is not clipped, because there is nothing
    to compare it with.

    A fragment is as far away as if its absent numbers were as far as those that it has. The mean of each number is
    over those who sent it.
    """
    away = [_away(mine, model) for model in others]
    if radius is None:
        radius = sorted(away)[max(0, len(away) - 1 - 2 * byzantine)]
    shares = _shares([own, *_counted(others, weights)])
    if any(map(_is_fragment, others)):
        moved = [_moved(mine, m, 1.0 if d <= radius else radius / d) for m, d in zip(others, away, strict=True)]
        return _blend_known([mine, *moved], shares, mine)
    pulled = shares[1:] * [1.0 if d <= radius else radius / d for d in away]
    shares[0] += (shares[1:] - pulled).sum()
    shares[1:] = pulled
    return _blend([mine, *others], shares)


def _shares(weights: Sequence[float]) -> Numbers:
    scaled = np.array(weights, np.float64) / max(weights)  # before the sum, which could overflow
    shares: Numbers = scaled / scaled.sum()
    return shares


def _blend(models: Sequence[Model], shares: Numbers) -> Model:
    """The weighted sum of the models, in one pass over memory."""
    if len(models) == 1:
        return models[0]
    out = np.empty(models[0].layout.size, np.float32)
    scratch = np.empty((2, min(BLOCK, out.size)), np.float64)
    for part in _parts(out.size, BLOCK):
        total, term = scratch[:, : out[part].size]
        total.fill(0.0)
        for model, share in zip(models, shares, strict=True):
            np.copyto(term, model.vector[part])
            term *= share
            total += term
        out[part] = total
    return Model(models[0].layout, out)


def _blend_known(models: Sequence[Model], shares: Numbers, mine: Model) -> Model:
    """The weighted mean of the known numbers of each coordinate; of mine where there are none."""
    out = np.empty(mine.layout.size, np.float32)
    gaps = any(map(_is_fragment, models))
    for part in _parts(out.size, BLOCK):
        own = mine.vector[part].astype(np.float64)
        total, weight = np.zeros((2, own.size))
        for model, share in zip(models, shares, strict=True):
            where, numbers = _known(model, part, own)
            total[where] += numbers * share
            weight[where] += share
        if gaps:
            np.divide(total, weight, out=own, where=weight > 0)
        out[part] = own if gaps else total
    return Model(mine.layout, out)


def _known(model: Model, part: slice, own: npt.NDArray[Any]) -> tuple[slice | Indices, Numbers]:
    """The places in this part of the vector at which a model counts, and its numbers there."""
    if not isinstance(model, PartialModel):
        return slice(None), model.vector[part].astype(np.float64)
    ends = np.array((part.start, part.stop), np.int32)  # of the type of the indices, which are copied otherwise
    sent = slice(*np.searchsorted(model.indices, ends))
    where, numbers = model.indices[sent] - np.int32(part.start), model.values[sent].astype(np.float64)
    if not model.same:
        return where, numbers
    completed = own.copy()
    completed[where] = numbers
    return slice(None), completed


def _trimmed(models: Sequence[Model], cut: int) -> Model:
    """The mean of each coordinate without its `cut` smallest and largest values."""
    n = len(models)
    if n == 1:
        return models[0]
    out = np.empty(models[0].layout.size, np.float32)
    scratch = np.empty((n + 1, _stacked(n)), np.float32)
    total = np.empty(_stacked(n), np.float64)
    for part in _parts(out.size, _stacked(n)):
        *rows, spare = scratch[:, : out[part].size]
        for row, model in zip(rows, models, strict=True):
            np.copyto(row, model.vector[part])
        _sort(rows, spare, cut)
        middle = total[: spare.size]
        middle.fill(0.0)
        for row in rows[cut : n - cut]:
            middle += row
        middle /= n - 2 * cut
        out[part] = middle
    return Model(models[0].layout, out)


def _trimmed_known(models: Sequence[Model], cut: int, mine: Model) -> Model:
    """As `_trimmed`, of the known numbers of each coordinate; of mine where there are none. At least one or two of
    them remain."""
    n = len(models)
    out = mine.vector.copy()
    scratch = np.empty((n + 1, _stacked(n)), np.float32)
    for part in _parts(out.size, _stacked(n)):
        own, *rows, spare = out[part], *scratch[:, : out[part].size]
        count = np.zeros(own.size, np.int32)
        for row, model in zip(rows, models, strict=True):
            row.fill(np.inf)  # an absent number comes after all others
            where, numbers = _known(model, part, own)
            row[where] = numbers
            count[where] += 1
        _sort(rows, spare)
        for c in (np.flatnonzero(np.bincount(count)[1:]) + 1).tolist():
            few, columns = min(cut, (c - 1) // 2), np.flatnonzero(count == c)
            own[columns] = np.mean([row[columns] for row in rows[few : c - few]], axis=0, dtype=np.float64)
    return Model(mine.layout, out)


def _sort(rows: list[Vector], spare: Vector, cut: int = 0) -> None:
    """Sort each column, except within the outer `cut` rows. A sorting network compares whole rows at once, several
    times as fast as sorting column by column."""
    for low, high in _network(len(rows), cut):
        np.minimum(rows[low], rows[high], out=spare)
        np.maximum(rows[low], rows[high], out=rows[high])
        rows[low], spare = spare, rows[low]


@cache
def _network(n: int, cut: int) -> tuple[tuple[int, int], ...]:
    """Batcher's merge exchange (Knuth, 5.2.2, algorithm M) for n rows, without comparisons that only sort the
    outer `cut` rows."""
    top = 1 << (n - 1).bit_length() >> 1
    pairs, p = [], top
    while p:
        q, r, d = top, 0, p
        while d:
            pairs += [(i, i + d) for i in range(n - d) if i & p == r]
            q, r, d = q // 2, p, q - p
        p //= 2
    needed, kept = set(range(cut, n - cut)), []
    for pair in reversed(pairs):
        if not needed.isdisjoint(pair):
            needed.update(pair)
            kept.append(pair)
    return tuple(reversed(kept))


def _ranked(models: Sequence[Model], byzantine: int) -> list[int]:
    """The indices of at least 3 models, best Krum score first."""
    n = len(models)
    neighbours = n - min(byzantine, (n - 3) // 2) - 2
    apart = np.sort(_squared_distances(models), axis=1)  # each row starts with the model itself, at 0
    order: list[int] = np.argsort(apart[:, 1 : 1 + neighbours].sum(axis=1), kind="stable").tolist()
    return order


def _squared_distances(models: Sequence[Model]) -> Numbers:
    """Between all models, from their inner products; where these nearly cancel, from the differences."""
    n = len(models)
    products = np.zeros((n, n), np.float64)
    scratch = np.empty((n, _stacked(n)), np.float64)
    for part in _parts(models[0].layout.size, _stacked(n)):
        rows = scratch[:, : models[0].vector[part].size]
        for row, model in zip(rows, models, strict=True):
            np.copyto(row, model.vector[part])
        products += rows @ rows.T
    sums = np.add.outer(np.diag(products), np.diag(products))
    apart: Numbers = sums - 2 * products
    for i, j in np.argwhere(np.triu(apart <= 1e-6 * sums, k=1)):
        apart[i, j] = apart[j, i] = _distance(models[i], models[j]) ** 2
    return apart


def _distance(one: Model, other: Model) -> float:
    total, scratch = 0.0, np.empty(min(BLOCK, one.layout.size), np.float64)
    for part in _parts(one.layout.size, BLOCK):
        gap = scratch[: one.vector[part].size]
        np.subtract(one.vector[part], other.vector[part], out=gap, dtype=np.float64)
        total += float(np.square(gap, out=gap).sum())
    return sqrt(total)


def _away(mine: Model, other: Model) -> float:
    if not isinstance(other, PartialModel):
        return _distance(mine, other)
    gap = other.values.astype(np.float64) - mine.vector[other.indices]
    return sqrt(float(np.square(gap, out=gap).sum()) * mine.layout.size / max(1, gap.size))


def _moved(mine: Model, other: Model, share: float) -> Model:
    """This share of the way from mine to the other."""
    if share == 1:
        return other
    where = other.indices if isinstance(other, PartialModel) else slice(None)
    own = mine.vector[where].astype(np.float64)
    numbers = (own + share * (other.numbers - own)).astype(np.float32)
    if isinstance(other, PartialModel):
        return PartialModel(other.layout, other.indices, numbers, same=other.same)
    return Model(other.layout, numbers)


def _is_fragment(model: Model) -> bool:
    return isinstance(model, PartialModel) and not model.same


def _stacked(n: int) -> int:
    return min(BLOCK, max(STACKED // n, 1 << 10))


def _parts(size: int, step: int) -> Iterator[slice]:
    return (slice(start, start + step) for start in range(0, size, step))


def _counted(models: Sequence[Model], weights: Sequence[float] | None) -> list[float]:
    if weights is None:
        return [1.0] * len(models)
    if len(weights) != len(models):
        raise ValueError(f"{len(models)} models but {len(weights)} weights")
    return [float(w) for w in weights]


def _check(models: Sequence[Model], weights: Sequence[float]) -> None:
    if not all(0 <= w < inf for w in weights):
        raise ValueError("a weight is negative or not finite")
    if len({m.layout.digest for m in models}) > 1:
        raise LayoutMismatch("models of different layouts cannot be averaged")
