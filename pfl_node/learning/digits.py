"""The embedded task: scikit-learn's handwritten digits, rotated differently in each cluster. Needs no download."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pfl_node.errors import ConfigError, TaskError
from pfl_node.learning import option_types
from pfl_node.learning.allocation import AllocationPlan, Allocator, Share, number, places, seat
from pfl_node.learning.models.digits_nets import MODELS
from pfl_node.learning.partition import MIXES, Indices, same_mix
from pfl_node.learning.task import Data, Place, Task

if TYPE_CHECKING:
    from torch import nn

IMAGES = 1797
TESTS = round(0.2 * IMAGES)
SAMPLES = 60  # training samples of a node, if there are enough
LEAST = 20  # minimum of training samples; nodes share samples rather than have fewer
PARTS = 5  # one of this number of parts is for validation
TRAIN = {"optimizer": "sgd", "lr": 0.1, "batch": 8, "epochs": 2.0}


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
    test_mix: str = "uniform",
) -> Task:
    """One cluster for each of `angles`; `sizes` are their numbers of nodes (None: as equal as possible), and the
    first nodes are the first cluster. `samples` are for training; a quarter as many more are for validation.

    While there are enough images, no two nodes have the same one; otherwise their shares overlap. Without an
    index, the node's id decides its cluster and samples (which may overlap); with an index but without `nodes`,
    the id decides the samples, and the places take the clusters in turn. Nodes are tested on all test images of
    their cluster, or with `test_mix` = own on as many as have the class proportions of their training images.

    `auxiliary` is the share of the training images that is set aside: the same unlabelled samples at all nodes,
    rotated by each angle in turn. With `alpha`, all images of a cluster are allocated, each class by
    Dirichlet(alpha); a fifth of a node's images are for validation (all, if it has fewer than five). Of several
    models, place i uses number i modulo their count; without an index the node's id decides.
    """
    turns, makers = _turns(angles), _models(model)
    counts = option_types.counts(len(turns), sizes, places(index, nodes))
    mine = share_of(Place(index, nodes, seed, node_id), counts, samples, alpha, aside := _aside(auxiliary, counts))
    return Task(
        name="digits",
        model=makers[(number(node_id, 1) if index is None else index) % len(makers)],
        train=_data(mine.train, turns[mine.cluster]),
        val=_data(mine.train if mine.val is None else mine.val, turns[mine.cluster]),
        test=_tests(turns[mine.cluster], seed, counts, mine, test_mix),
        train_defaults=TRAIN,
        cluster=mine.cluster,
        networks=MODELS,
        **_auxiliary(turns, seed, aside),
    )


# -- allocation -------------------------------------------------------------------------------------------------


def share_of(
    place: Place, counts: tuple[int, ...], samples: Any = None, alpha: Any = None, aside: int = 0
) -> Share:
    """The images of a node, if cluster c has `counts[c]` nodes (or this weight)."""
    if samples is not None:
        option_types.whole("samples", samples)
    if alpha is not None:
        positive = option_types.positive("alpha", alpha)
        plan = AllocationPlan(counts, place.seed, "dirichlet", positive, samples, aside=aside, val_part=PARTS)
    else:
        n, overlap = samples or SAMPLES, False
        if place.index is not None and place.nodes is not None:
            cluster, _ = seat(counts, place.index)
            pool = len(pools(place.seed, counts, aside)[cluster][0])
            n, overlap = _samples(pool // counts[cluster], pool, samples)
        val = max(1, n // (PARTS - 1))
        rules = {"val_last": True, "overlap": overlap}
        plan = AllocationPlan(counts, place.seed, "in_order", None, n, val, aside, **rules)
    return _allocator(plan).of_place(place.index, place.nodes, place.node_id)[0]


@lru_cache(maxsize=16)
def _allocator(plan: AllocationPlan) -> Allocator:
    return Allocator(
        "digits", images()[1], [train for train, _ in pools(plan.seed, plan.counts, plan.aside)], plan
    )


@lru_cache(maxsize=16)
def pools(seed: int, counts: tuple[int, ...], aside: int = 0) -> tuple[tuple[Indices, Indices], ...]:
    """The images of each cluster for training, in proportion to its nodes, and for tests, equally many for all.
    `aside` images are left for `set_aside`."""
    order = np.random.default_rng(seed).permutation(IMAGES)[: IMAGES - aside]
    ends = np.cumsum(counts) * (len(order) - TESTS) // sum(counts)
    train = np.split(order[TESTS:], ends[:-1])
    return tuple(zip(train, np.array_split(order[:TESTS], len(counts)), strict=True))


def set_aside(seed: int, aside: int) -> Indices:
    """The auxiliary images; they do not depend on the clusters."""
    return np.random.default_rng(seed).permutation(IMAGES)[IMAGES - aside :]


def _samples(share: int, pool: int, samples: int | None) -> tuple[int, bool]:
    """How many samples a node trains on, and whether the shares of the nodes must overlap for that."""
    if samples is not None:
        return samples, samples + max(1, samples // (PARTS - 1)) > share
    mine = min(SAMPLES, share * (PARTS - 1) // PARTS)
    return (mine, False) if mine >= LEAST else (min(SAMPLES, pool // 2), True)


def _turns(angles: Any) -> tuple[int, ...]:
    """The angles in quarter turns, counter-clockwise."""
    found = option_types.several("angles", angles)
    try:
        degrees = [int(angle) for angle in found]
    except (TypeError, ValueError):
        raise ConfigError(f"task.angles = {angles!r} is not a list of whole numbers") from None
    if odd := [angle for angle in degrees if angle % 90]:
        raise ConfigError(f"task.angles: angle {odd[0]} is not a multiple of 90")
    return tuple(angle // 90 % 4 for angle in degrees)


def _models(model: Any) -> list[Callable[[], nn.Module]]:
    return [MODELS[option_types.word("model", name, MODELS)] for name in option_types.several("model", model)]


def _aside(share: Any, counts: tuple[int, ...]) -> int:
    """The number of auxiliary images."""
    aside = option_types.amount("auxiliary", share, of=IMAGES - TESTS)
    least = min((IMAGES - TESTS - aside) * size // sum(counts) for size in counts if size)
    if aside and least < LEAST:
        raise ConfigError(f"task.auxiliary = {share} leaves a cluster only {least} images to train on")
    return aside


# -- the images --------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def images() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """(n, 1, 8, 8) in [-1, 1] and the labels. Read from scikit-learn's file without importing scikit-learn, which
    would cost 1.6 s of CPU time and 70 MB."""
    spec = importlib.util.find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise TaskError("task digits needs the images of scikit-learn: pip install scikit-learn")
    table = np.loadtxt(Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")
    pixels = (table[:, :-1] / 8 - 1).astype(np.float32)
    return pixels.reshape(-1, 1, 8, 8), table[:, -1].astype(np.int64)


@lru_cache(maxsize=4)
def rotated(turn: int) -> npt.NDArray[np.float32]:
    return np.ascontiguousarray(np.rot90(images()[0], turn, axes=(2, 3)))


@lru_cache(maxsize=64)
def _test(turn: int, seed: int, counts: tuple[int, ...], cluster: int) -> Data:
    """Cached, so that all nodes of the cluster share one copy."""
    return _data(pools(seed, counts)[cluster][1], turn)


def _tests(turn: int, seed: int, counts: tuple[int, ...], mine: Share, mix: Any) -> Data:
    if option_types.word("test_mix", mix, MIXES) == "uniform":
        return _test(turn, seed, counts, mine.cluster)
    test, labels = pools(seed, counts)[mine.cluster][1], images()[1]
    return _data(test[same_mix(labels[test], labels[mine.train])], turn)


@lru_cache(maxsize=4)
def _auxiliary(turns: tuple[int, ...], seed: int, aside: int) -> dict[str, Any]:
    """The fields of a task; cached, so that all nodes of a process share one copy."""
    if not aside:
        return {}
    import torch

    which = set_aside(seed, aside)
    turned = np.stack([rotated(turn)[which] for turn in turns])
    x = torch.from_numpy(turned[np.arange(aside) % len(turns), np.arange(aside)])
    return {"auxiliary": x, "auxiliary_labels": torch.from_numpy(images()[1][which])}


def _data(which: Indices, turn: int) -> Data:
    import torch

    return Data(torch.from_numpy(rotated(turn)[which]), torch.from_numpy(images()[1][which]))
