"""The embedded task: scikit-learn's handwritten digits, in clusters that see them rotated. Nothing to download."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pfl_node.errors import ConfigError, TaskError, nearest
from pfl_node.learning import option_types
from pfl_node.learning.allocation import number, places, seat
from pfl_node.learning.models.digits_nets import MODELS
from pfl_node.learning.partition import EVEN, Indices, dirichlet, in_turn
from pfl_node.learning.task import Data, Task

if TYPE_CHECKING:
    import torch
    from torch import nn

IMAGES = 1797
TESTS = round(0.2 * IMAGES)
SAMPLES = 60  # that a node trains on, unless there are fewer
LEAST = 20  # training samples; before a share gets smaller than this, nodes share samples instead
TRAIN_PER_VAL = 4
TRAIN = {"optimizer": "sgd", "lr": 0.1, "batch": 8, "epochs": 2.0}


class DigitsShare(NamedTuple):
    """One node's samples, as numbers of images."""

    cluster: int
    train: Indices
    val: Indices
    test: Indices


def digits(
    index: int | None,
    nodes: int | None,
    seed: int,
    node_id: str,
    angles: Sequence[int] = (0, 180),
    sizes: Sequence[int] | None = None,
    samples: int | None = None,
    model: str | Sequence[str] = "mlp",
    auxiliary: float = 0,
    alpha: float | None = None,
) -> Task:
    """One cluster for each of `angles`; `sizes` says how many nodes each has (None: as equal as possible), and the
    first nodes are the first cluster. `samples` are for training; a quarter as many more are for validation.

    No image is at two nodes, and no test image at any, as long as there are enough images; with too many nodes
    their shares overlap. Without an index, cluster and samples are drawn with the node's id (and may overlap);
    with an index but without `nodes` the samples are, and the clusters have their places in turn.
    The test data of a node is all of its cluster's.

    `auxiliary` is the share of the images for training that is set aside: the same unlabelled samples at all
    nodes, turned by one angle after the other. With `alpha` all images of a cluster are given out, each class by
    Dirichlet(alpha); a fifth of a node's are for validation (one with fewer than five uses them for both). Of
    several models, place i has number i modulo their count; without an index the node's id decides.
    """
    turns = _turns(angles)
    makers = _models(model)
    counts = option_types.counts(len(turns), sizes, places(index, nodes))
    aside = _aside(auxiliary, counts)
    mine = _share(counts, samples, alpha, seed, index, nodes, node_id, aside)
    turn = turns[mine.cluster]
    return Task(
        name="digits",
        model=makers[(number(node_id, 1) if index is None else index) % len(makers)],
        train=_data(mine.train, turn),
        val=_data(mine.val, turn),
        test=_test(turn, seed, counts, mine.cluster),
        train_defaults=TRAIN,
        cluster=mine.cluster,
        auxiliary=_auxiliary(turns, seed, aside) if aside else None,
    )


# -- who gets what -----------------------------------------------------------------------------------------------


def _share(
    counts: tuple[int, ...],
    samples: Any,
    alpha: Any,
    seed: int,
    index: int | None,
    nodes: int | None,
    node_id: str,
    aside: int,
) -> DigitsShare:
    """In the way that fits what is known of the place."""
    if samples is not None:
        option_types.whole("samples", samples)
    if alpha is not None:
        return skewed_share(counts, _alpha(alpha, samples), seed, None if nodes is None else index, aside)
    if index is None or nodes is None:
        return drawn_share(counts, samples, seed, node_id, aside, index)
    return indexed_share(counts, samples, seed, index, aside)


def indexed_share(
    counts: tuple[int, ...], samples: int | None, seed: int, index: int, aside: int = 0
) -> DigitsShare:
    """The share of node `index`, when cluster c has `counts[c]` nodes."""
    cluster, place = seat(counts, index)
    pool, test = pools(seed, counts, aside)[cluster]
    n, fits = _samples(len(pool) // counts[cluster], len(pool), samples)
    if fits:
        start = place * (len(pool) // counts[cluster])
        mine = pool[start : start + n + _val(n)]
    else:
        mine = np.random.default_rng((seed, index)).choice(pool, n + _val(n), replace=False)
    return DigitsShare(cluster, mine[:n], mine[n:], test)


def drawn_share(
    counts: tuple[int, ...],
    samples: int | None,
    seed: int,
    node_id: str,
    aside: int = 0,
    index: int | None = None,
) -> DigitsShare:
    """The share of a node that has only its id, or its place among nobody knows how many; `counts` are the weights
    of the clusters."""
    chance = np.random.default_rng((seed, number(node_id, 0)))
    cluster = int(chance.choice(len(counts), p=np.array(counts) / sum(counts)))
    cluster = cluster if index is None else in_turn(index, counts)
    pool, test = pools(seed, counts, aside)[cluster]
    n, _ = _samples(0, len(pool), samples or SAMPLES)
    mine = chance.choice(pool, n + _val(n), replace=False)
    return DigitsShare(cluster, mine[:n], mine[n:], test)


def skewed_share(
    counts: tuple[int, ...], alpha: float, seed: int, index: int | None, aside: int = 0
) -> DigitsShare:
    """The share of node `index`, when its cluster's images are split by Dirichlet(alpha)."""
    if index is None:
        raise ConfigError(
            "task digits: alpha splits the images over all places: say which one, task.index, and how many, "
            "task.nodes"
        )
    cluster, place = seat(counts, index)
    mine = _skewed(counts, alpha, seed, cluster, aside)[place]
    held = len(mine) // (TRAIN_PER_VAL + 1)
    val = mine[:held] if held else mine
    return DigitsShare(cluster, mine[held:], val, pools(seed, counts, aside)[cluster][1])


@lru_cache(maxsize=16)
def _skewed(counts: tuple[int, ...], alpha: float, seed: int, cluster: int, aside: int) -> list[Indices]:
    pool, _ = pools(seed, counts, aside)[cluster]
    return [pool[part] for part in dirichlet(images()[1][pool], counts[cluster], alpha, (seed, cluster))]


@lru_cache(maxsize=16)
def pools(seed: int, counts: tuple[int, ...], aside: int = 0) -> tuple[tuple[Indices, Indices], ...]:
    """For each cluster the images for training (by its number of nodes) and for tests (the same for all). So many
    are left for `set_aside`."""
    order = np.random.default_rng(seed).permutation(IMAGES)[: IMAGES - aside]
    ends = np.cumsum(counts) * (len(order) - TESTS) // sum(counts)
    train = np.split(order[TESTS:], ends[:-1])
    return tuple(zip(train, np.array_split(order[:TESTS], len(counts)), strict=True))


def set_aside(seed: int, aside: int) -> Indices:
    """The auxiliary images, the same whatever the clusters are."""
    return np.random.default_rng(seed).permutation(IMAGES)[IMAGES - aside :]


def _samples(share: int, pool: int, samples: int | None) -> tuple[int, bool]:
    """How many to train on, and whether every node can have its own."""
    if samples is None:
        mine = min(SAMPLES, share * TRAIN_PER_VAL // (TRAIN_PER_VAL + 1))
        return (mine, True) if mine >= LEAST else (min(SAMPLES, pool // 2), False)
    if samples + _val(samples) > pool:
        raise ConfigError(f"task digits: samples = {samples}, but the cluster has only {pool} images to train on")
    return samples, samples + _val(samples) <= share


def _val(samples: int) -> int:
    return max(1, samples // TRAIN_PER_VAL)


def _turns(angles: Any) -> tuple[int, ...]:
    """Quarters of a turn to the left."""
    found = option_types.several("angles", angles)
    try:
        degrees = [int(angle) for angle in found]
    except (TypeError, ValueError):
        raise ConfigError(f"task.angles = {angles!r} is not a list of whole numbers") from None
    if odd := [angle for angle in degrees if angle % 90]:
        raise ConfigError(f"task.angles: angle {odd[0]} is not a multiple of 90")
    return tuple(angle // 90 % 4 for angle in degrees)


def _models(model: Any) -> list[Callable[[], nn.Module]]:
    names = model.split(",") if isinstance(model, str) else model
    if not isinstance(names, Sequence) or not names:
        raise ConfigError(f"task digits: model = {model!r} is not a name or a list of names")
    for name in names:
        if name not in MODELS:
            raise ConfigError(f"task digits has no model {name!r}; {nearest(str(name), MODELS)}")
    return [MODELS[name] for name in names]


def _aside(share: Any, counts: tuple[int, ...]) -> int:
    """How many images are auxiliary."""
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share < 1:
        raise ConfigError(f"task digits: auxiliary = {share!r} is not a share from 0 to below 1")
    aside = round(share * (IMAGES - TESTS))
    least = min((IMAGES - TESTS - aside) * size // sum(counts) for size in counts if size)
    if aside and least < LEAST:
        raise ConfigError(f"task digits: auxiliary = {share} leaves a cluster only {least} images to train on")
    return aside


def _alpha(alpha: Any, samples: int | None) -> float:
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not 0 < alpha <= EVEN:
        raise ConfigError(f"task digits: alpha = {alpha!r} is not a number above zero")
    if samples is not None:
        raise ConfigError("task digits: alpha gives out all images: leave out samples")
    return float(alpha)


# -- the images --------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def images() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """(n, 1, 8, 8) in [-1, 1] and the labels. Read from scikit-learn's own file, without importing scikit-learn:
    that would cost 1.6 s of CPU and 70 MB."""
    spec = importlib.util.find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise TaskError("task digits needs scikit-learn, whose images it uses: pip install scikit-learn")
    table = np.loadtxt(Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")
    pixels = (table[:, :-1] / 8 - 1).astype(np.float32)
    return pixels.reshape(-1, 1, 8, 8), table[:, -1].astype(np.int64)


@lru_cache(maxsize=4)
def rotated(turn: int) -> npt.NDArray[np.float32]:
    return np.ascontiguousarray(np.rot90(images()[0], turn, axes=(2, 3)))


@lru_cache(maxsize=64)
def _test(turn: int, seed: int, counts: tuple[int, ...], cluster: int) -> Data:
    """One copy for all nodes of the cluster."""
    return _data(pools(seed, counts)[cluster][1], turn)


@lru_cache(maxsize=4)
def _auxiliary(turns: tuple[int, ...], seed: int, aside: int) -> torch.Tensor:
    """One copy for all nodes of a process."""
    import torch

    which = set_aside(seed, aside)
    turned = np.stack([rotated(turn)[which] for turn in turns])
    return torch.from_numpy(turned[np.arange(aside) % len(turns), np.arange(aside)])


def _data(which: Indices, turn: int) -> Data:
    import torch

    return Data(torch.from_numpy(rotated(turn)[which]), torch.from_numpy(images()[1][which]))
