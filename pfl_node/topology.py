"""Graphs of a round as pure functions of (seed, round, members): every node computes them alone."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from functools import lru_cache

from pfl_node.types import PeerId

Graph = dict[PeerId, tuple[PeerId, ...]]
TRIES = 50


def neighbours(me: PeerId, peers: Iterable[PeerId], *, degree: int, seed: int, round: int) -> tuple[PeerId, ...]:
    """My neighbours in the round's random regular graph of everybody."""
    return regular(tuple(sorted({me, *peers})), degree, seed, round)[me]


@lru_cache(maxsize=64)
def regular(members: tuple[PeerId, ...], degree: int, seed: int, round: int) -> Graph:
    """A connected random graph in which everybody has `degree` neighbours.

    A union of random rings (and one random matching when the degree is odd). With an odd degree and an odd
    number of members one of them has a neighbour less; with too few members everybody knows everybody.
    """
    if degree < 0:
        raise ValueError(f"a degree of {degree}")
    n = len(members)
    if n <= degree + 1:
        return {m: tuple(o for o in members if o != m) for m in members}
    rng = random.Random(f"graph/{seed}/{round}/{n}/{degree}")
    for _ in range(TRIES):
        edges = _rings(rng, n, degree)
        if len(edges) == n * (degree // 2) + (n // 2 if degree % 2 else 0):
            return _graph(members, edges)
    return _graph(members, _circulant(rng, n, degree))


def _rings(rng: random.Random, n: int, degree: int) -> set[tuple[int, int]]:
    edges: set[tuple[int, int]] = set()
    for _ in range(degree // 2):
        order = rng.sample(range(n), n)
        edges |= {_edge(a, b) for a, b in zip(order, [*order[1:], order[0]], strict=True)}
    if degree % 2:
        order = rng.sample(range(n), n)
        edges |= {_edge(a, b) for a, b in zip(order[0::2], order[1::2], strict=False)}
    return edges


def _circulant(rng: random.Random, n: int, degree: int) -> set[tuple[int, int]]:
    """For small swarms, where random rings nearly always share an edge: one ring with chords, shuffled."""
    order = rng.sample(range(n), n)
    edges = {_edge(order[i], order[(i + d) % n]) for i in range(n) for d in range(1, degree // 2 + 1)}
    if degree % 2:
        edges |= {_edge(order[i], order[i + n // 2]) for i in range(n // 2)}
    return edges


def _edge(a: int, b: int) -> tuple[int, int]:
    return (a, b) if a < b else (b, a)


def _graph(members: Sequence[PeerId], edges: Iterable[tuple[int, int]]) -> Graph:
    near: dict[PeerId, list[PeerId]] = {m: [] for m in members}
    for a, b in sorted(edges):
        near[members[a]].append(members[b])
        near[members[b]].append(members[a])
    return {m: tuple(sorted(ns)) for m, ns in near.items()}
