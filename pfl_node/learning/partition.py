"""Partitions of a data set into shares for many nodes. Pure functions of sample counts and labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pfl_node.errors import ConfigError

EVEN = 1e9  # practically equal shares; far above, the sampling fails numerically

Indices = npt.NDArray[np.intp]
Seed = int | tuple[int, ...]


def clusters(samples: int, sizes: Sequence[int], seed: Seed) -> list[Indices]:
    """The samples of each cluster, in proportion to its number of nodes."""
    nodes = sum(sizes)
    _check(samples, nodes)
    if min(sizes) < 0:
        raise ConfigError(f"sizes = {list(sizes)} cannot be numbers of nodes")
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


def quantity(labels: npt.NDArray[Any], nodes: int, alpha: float, seed: Seed) -> list[Indices]:
    """Random shares whose sizes follow Dirichlet(alpha): the smaller alpha, the more unequal (Li et al. 2022). No
    share is empty."""
    _check(len(labels), nodes)
    _check_alpha(alpha)
    chance = np.random.default_rng(seed)
    ends = np.rint(np.cumsum(chance.dirichlet(np.full(nodes, alpha)))[:-1] * len(labels)).astype(np.intp)
    return _fill_up(np.split(chance.permutation(len(labels)), ends))


def dirichlet(labels: npt.NDArray[Any], nodes: int, alpha: float, seed: Seed) -> list[Indices]:
    """Divide each class by Dirichlet(alpha): the smaller alpha, the fewer classes dominate a node (Hsu et al.
    2019). Every sample is at exactly one node, in random order. A node without samples gets one from the node with
    the most."""
    _check(len(labels), nodes)
    _check_alpha(alpha)
    chance = np.random.default_rng(seed)
    pieces: list[list[Indices]] = [[] for _ in range(nodes)]
    for label in np.unique(labels):
        members = chance.permutation(np.flatnonzero(labels == label))
        ends = np.cumsum(chance.dirichlet(np.full(nodes, alpha)))[:-1] * len(members)
        for piece, mine in zip(pieces, np.split(members, np.rint(ends).astype(np.intp)), strict=True):
            piece.append(mine)
    shares = [chance.permutation(np.concatenate(piece)) for piece in pieces]
    return _fill_up(shares)


def _fill_up(shares: list[Indices]) -> list[Indices]:
    for node, share in enumerate(shares):
        if not len(share):
            richest = max(range(len(shares)), key=lambda n: len(shares[n]))
            shares[node], shares[richest] = shares[richest][-1:], shares[richest][:-1]
    return shares


def _check(samples: int, nodes: int, what: str | None = None) -> None:
    if nodes < 1:
        raise ConfigError(f"a partition for {nodes} nodes: give at least one")
    if samples < nodes:
        raise ConfigError(f"{samples} samples are too few for {what or f'{nodes} nodes'}")


def _check_alpha(alpha: float) -> None:
    if not 0 < alpha <= EVEN:
        raise ConfigError(f"alpha = {alpha} of a Dirichlet partition is not above zero and at most {EVEN:g}")
