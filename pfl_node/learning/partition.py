"""Partitions of a data set into shares for many nodes. Pure functions of sample counts and labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pfl_node.errors import ConfigError

EVEN = 1e9  # practically equal shares; far above, the sampling fails numerically
BATCHES, BATCH = 41, 1000  # batches of draws (the first has one draw) until no node is empty, and their size
LEAST = 0.01  # minimum share of a node, as a fraction of a mean share
MIXES = ("uniform", "own")  # class proportions of a node's test data

Indices = npt.NDArray[np.intp]
Parts = npt.NDArray[np.float64]
Seed = int | tuple[int, ...]


def clusters(samples: int, sizes: Sequence[int], seed: Seed) -> list[Indices]:
    """The samples of each cluster, in proportion to its number of nodes."""
    nodes = sum(sizes)
    _check(samples, nodes)
    if min(sizes) < 0:
        raise ConfigError(f"sizes = {list(sizes)} are not valid numbers of nodes")
    ends = np.cumsum(sizes) * samples // nodes
    return np.split(np.random.default_rng(seed).permutation(samples), ends[:-1])


def in_turn(index: int, weights: Sequence[int]) -> int:
    """The cluster of place `index` if the number of places is unknown: for any number, clusters have shares in
    proportion to their weights."""
    given = [0] * len(weights)
    for seat in range(index + 1):
        owed = [(seat + 1) * weight - sum(weights) * had for weight, had in zip(weights, given, strict=True)]
        given[mine := owed.index(max(owed))] += 1
    return mine


def iid(labels: npt.NDArray[Any], nodes: int, seed: Seed) -> list[Indices]:
    """Random shares of equal size, up to one sample."""
    _check(len(labels), nodes)
    return np.array_split(np.random.default_rng(seed).permutation(len(labels)), nodes)


def in_order(samples: int, nodes: int) -> list[Indices]:
    """Consecutive shares of equal size; a remainder is left out."""
    size = samples // nodes
    return [np.arange(node * size, (node + 1) * size) for node in range(nodes)]


def shards(labels: npt.NDArray[Any], nodes: int, seed: Seed, each: int = 2) -> list[Indices]:
    """The samples sorted by label and cut into equal shards; each node gets `each` random shards, so that most
    nodes have that many classes (McMahan et al. 2017)."""
    _check(len(labels), nodes * each, f"{each} shards for each of {nodes} nodes")
    chance = np.random.default_rng(seed)
    pieces = np.array_split(np.argsort(labels, kind="stable"), nodes * each)
    drawn = chance.permutation(len(pieces)).reshape(nodes, each)
    return [chance.permutation(np.concatenate([pieces[piece] for piece in mine])) for mine in drawn]


def paired_shards(labels: npt.NDArray[Any], nodes: int, seed: Seed) -> list[Indices]:
    """The samples sorted by label and cut into two equal shards per node; node c gets shards c and c + nodes: with
    ten equal classes, two classes i and i + 5 (slides on McMahan et al. 2017). The seed decides only the order."""
    _check(len(labels), nodes * 2, f"2 shards for each of {nodes} nodes")
    chance = np.random.default_rng(seed)
    pieces = np.array_split(np.argsort(labels, kind="stable"), nodes * 2)
    return [chance.permutation(np.concatenate(pair)) for pair in zip(pieces[:nodes], pieces[nodes:], strict=True)]


def quantity(labels: npt.NDArray[Any], nodes: int, alpha: float, seed: Seed) -> list[Indices]:
    """Random shares whose sizes follow Dirichlet(alpha): the smaller alpha, the more unequal (Li et al. 2022).
    Drawn again until no share is empty, as in the code of that paper."""
    _check(len(labels), nodes)
    _check_alpha(alpha)
    chance = np.random.default_rng(seed)
    parts = _nobody_empty(chance, chance.dirichlet(np.full(nodes, alpha))[None], [len(labels)], alpha, least=0)
    return np.split(chance.permutation(len(labels)), _ends(parts[0], len(labels)))


def dirichlet(labels: npt.NDArray[Any], nodes: int, alpha: float, seed: Seed) -> list[Indices]:
    """Divide each class by Dirichlet(alpha): the smaller alpha, the fewer classes dominate a node (Hsu et al.
    2019). Every sample is at exactly one node, in random order. Drawn again until every node has a hundredth of a
    mean share, as in the code of Eriksson 2022."""
    _check(len(labels), nodes)
    _check_alpha(alpha)
    chance = np.random.default_rng(seed)
    members, drawn = [], []
    for label in np.unique(labels):
        members.append(chance.permutation(np.flatnonzero(labels == label)))
        drawn.append(chance.dirichlet(np.full(nodes, alpha)))
    parts = _nobody_empty(chance, np.array(drawn), [len(some) for some in members], alpha)
    pieces = [np.split(some, _ends(part, len(some))) for some, part in zip(members, parts, strict=True)]
    return [chance.permutation(np.concatenate(mine)) for mine in zip(*pieces, strict=True)]


def same_mix(labels: npt.NDArray[Any], like: npt.NDArray[Any]) -> Indices:
    """As many samples as possible with the class proportions of `like`; the first ones of each class."""
    classes, counts = np.unique(like, return_counts=True)
    there = [np.flatnonzero(labels == label) for label in classes]
    total = min(len(some) * len(like) / n for some, n in zip(there, counts, strict=True))
    picked = [some[: round(total * n / len(like))] for some, n in zip(there, counts, strict=True)]
    if not (found := np.sort(np.concatenate(picked))).size:
        raise ConfigError("task.test_mix = 'own': there are too few test samples of a class that a node trains on")
    return found


def _nobody_empty(
    chance: np.random.Generator, first: Parts, sizes: Sequence[int], alpha: float, least: float = LEAST
) -> Parts:
    """The first draw in which no node has too few samples, starting with `first`. A row is a class."""
    classes, nodes = first.shape
    for batch in range(BATCHES):
        draws = chance.dirichlet(np.full(nodes, alpha), (BATCH, classes)) if batch else first[None]
        enough = draws.sum(1).min(1) > least * classes / nodes
        for parts in draws[enough]:
            counts = [np.diff(_ends(part, n), prepend=0, append=n) for part, n in zip(parts, sizes, strict=True)]
            if np.sum(counts, axis=0).min() > 0:
                return np.asarray(parts)
    raise ConfigError(
        f"alpha = {alpha} leaves some of {nodes} nodes without samples, in {BATCH * (BATCHES - 1):,} draws: "
        "use a larger alpha or fewer nodes"
    )


def _ends(part: Parts, samples: int) -> Indices:
    """The ends of the shares of a class, without the last."""
    return np.rint(np.cumsum(part)[:-1] * samples).astype(np.intp)


def _check(samples: int, nodes: int, what: str | None = None) -> None:
    if nodes < 1:
        raise ConfigError(f"a partition for {nodes} nodes: give at least one")
    if samples < nodes:
        raise ConfigError(f"{samples} samples are too few for {what or f'{nodes} nodes'}")


def _check_alpha(alpha: float) -> None:
    if not 0 < alpha <= EVEN:
        raise ConfigError(f"alpha = {alpha} of a Dirichlet partition is not above zero and at most {EVEN:g}")
