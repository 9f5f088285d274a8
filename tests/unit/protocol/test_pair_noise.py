"""Noise that cancels between neighbours: what remains of it for an observer, computed by brute force."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pfl_node.protocol.privacy.pair_noise import (
    least_variance,
    masked_variance,
    no_secret,
    own_variance,
    pair_seeds,
)
from pfl_node.types import PeerId

Matrix = npt.NDArray[np.float64]
PAIR, PATH, TRIANGLE = [(0, 1)], [(0, 1), (1, 2)], [(0, 1), (1, 2), (0, 2)]
A, B, C = PeerId("a"), PeerId("b"), PeerId("c")


def remaining_variance(
    edges: list[tuple[int, int]], own: list[float], pair: float, victim: int, colluders: tuple[int, ...]
) -> float:
    """The variance of the victim's noise given all other messages and all that the colluders know: from the joint
    covariance of every random number that is drawn."""
    n, m = len(own), len(edges)
    drawn = np.diag([pair**2] * m + own)  # of the pairs, of the nodes
    sums = np.hstack([np.zeros((n, m)), np.eye(n)])  # what each node adds
    for e, (i, j) in enumerate(edges):
        sums[i, e], sums[j, e] = 1.0, -1.0
    known = [sums[j] for j in range(n) if j != victim]
    known += [
        row for e, pair_of in enumerate(edges) if set(pair_of) & set(colluders) for row in [np.eye(m + n)[e]]
    ]
    known += [np.eye(m + n)[m + c] for c in colluders]
    seen: Matrix = np.array(known).reshape(len(known), m + n)
    mine = sums[victim]
    explained = mine @ drawn @ seen.T @ np.linalg.pinv(seen @ drawn @ seen.T) @ seen @ drawn @ mine
    return float(mine @ drawn @ mine - explained)


def own_variances(edges: list[tuple[int, int]], nodes: int, pair: float, q: int, degree: int) -> list[float]:
    near = [sum(i in edge for edge in edges) for i in range(nodes)]
    return [own_variance(pair, d, q, degree) for d in near]


@pytest.mark.parametrize("pair", [0.2, 0.7, 5.0])
@pytest.mark.parametrize("q", [0, 1, 2])
@pytest.mark.parametrize(("edges", "nodes"), [(PAIR, 2), (PATH, 3), (TRIANGLE, 3), (PATH, 4)])
@pytest.mark.parametrize("degree", [1, 2, 4])
def test_on_three_nodes_no_coalition_finds_less_noise_than_dp_sgd_adds(
    edges: list[tuple[int, int]], nodes: int, q: int, pair: float, degree: int
) -> None:
    own = own_variances(edges, nodes, pair, q, degree)
    for victim in range(nodes):
        others = [j for j in range(nodes) if j != victim]
        for size in range(min(q, len(others)) + 1):
            for colluders in combinations(others, size):
                assert remaining_variance(edges, own, pair, victim, colluders) >= 1 - 1e-9


@pytest.mark.parametrize(
    ("edges", "nodes", "q", "degree"), [(PAIR, 2, 0, 1), (TRIANGLE, 3, 1, 2), (PAIR, 2, 1, 1)]
)
@pytest.mark.parametrize("pair", [0.2, 0.7, 5.0])
def test_with_one_honest_neighbour_there_is_not_more_noise_than_needed(
    edges: list[tuple[int, int]], nodes: int, q: int, degree: int, pair: float
) -> None:
    """With more of them, the noise of the pairs among the others is left out of the account."""
    own = own_variances(edges, nodes, pair, q, degree)
    worst = min(remaining_variance(edges, own, pair, 0, c) for c in combinations(range(1, nodes), q))
    assert worst == pytest.approx(1, abs=1e-9)


def test_if_more_collude_than_stated_the_own_noise_is_left() -> None:
    own = own_variances(TRIANGLE, 3, 0.7, 1, 2)
    left = remaining_variance(TRIANGLE, own, 0.7, 0, (1, 2))
    assert left == pytest.approx(own[0])
    assert left < 0.8


@pytest.mark.parametrize("pair", [1e-3, 0.3, 1.0, 30.0, 1e6])
@pytest.mark.parametrize("honest", [0, 1, 3, 14])
def test_the_least_variance_and_what_neighbours_mask_add_up(pair: float, honest: int) -> None:
    x = least_variance(pair, honest)
    assert 1 / (1 + honest) - 1e-9 <= x <= 1 + 1e-9
    assert x + honest * masked_variance(pair, x) == pytest.approx(1)


def test_without_honest_neighbours_a_node_adds_the_noise_of_dp_sgd() -> None:
    assert own_variance(0.7, 0, 0, 4) == pytest.approx(1)
    assert own_variance(0.7, 2, 2, 2) == pytest.approx(1)
    assert own_variance(0.7, 0, 0, 4, sensitivity=2) == pytest.approx(4)


@pytest.mark.parametrize("given", [{"neighbours": 3}, {"sensitivity": 1.5}, {"colluders": 2}])
def test_fewer_neighbours_more_colluders_or_samples_that_weigh_more_need_more_noise(given: dict[str, Any]) -> None:
    usual: dict[str, Any] = {"neighbours": 4, "colluders": 1, "degree": 4}
    assert own_variance(0.7, **(usual | given)) > own_variance(0.7, **usual)


def test_both_nodes_of_a_pair_get_the_same_seed_and_opposite_signs() -> None:
    secrets = {frozenset((A, B)): b"1", frozenset((A, C)): b"2", frozenset((B, C)): b"3"}

    def seeds(me: PeerId, round: int, run: str = "r") -> dict[str, int]:
        return {
            s: sign for sign, s in pair_seeds(me, (A, B, C), lambda p: secrets[frozenset((me, p))], run, round)
        }

    a, b, c = (seeds(me, 7) for me in (A, B, C))
    for one, other in combinations((a, b, c), 2):
        (shared,) = one.keys() & other.keys()
        assert one[shared] == -other[shared]
    assert not {*a, *b, *c} & {*seeds(A, 8), *seeds(B, 8), *seeds(A, 7, "other run")}


def test_a_peer_without_a_key_is_left_out() -> None:
    assert pair_seeds(A, (B, C), no_secret, "r", 0) == ()
    assert len(pair_seeds(A, (B, C), {B: b"1"}.get, "r", 0)) == 1
