"""Who gets which samples: a data set cut into shares for many nodes. Pure; knows numbers of samples and labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pfl_node.errors import ConfigError

EVEN = 1e9  # an alpha that is as good as equal shares; far above it the draw breaks down

Indices = npt.NDArray[np.intp]


def dirichlet(labels: npt.NDArray[Any], nodes: int, alpha: float, seed: int | tuple[int, ...]) -> list[Indices]:
    """Each class is shared out by Dirichlet(alpha): the smaller alpha, the fewer classes a node has most of its
    samples of (Hsu et al. 2019). Every sample is at exactly one node, each node's in random order. A node that
    would have none gets one from the node that has most."""
    if nodes < 1:
        raise ConfigError(f"a partition for {nodes} nodes: give at least one")
    if not 0 < alpha <= EVEN:
        raise ConfigError(f"alpha = {alpha} of a Dirichlet partition is not above zero and at most {EVEN:g}")
    if len(labels) < nodes:
        raise ConfigError(f"{len(labels)} samples are too few for {nodes} nodes")
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
