from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pfl_node.errors import ConfigError
from pfl_node.learning.partition import EVEN, dirichlet

Labels = npt.NDArray[np.int64]

labels_of_some = st.lists(st.integers(-1, 5), min_size=12, max_size=200).map(lambda y: np.array(y, np.int64))
alphas = st.floats(0.1, EVEN)
seeds = st.integers(0, 2**40)


@settings(deadline=None, max_examples=40)
@given(labels_of_some, st.integers(1, 6), alphas, seeds)
def test_nothing_is_lost_nothing_is_twice_and_nobody_has_nothing(
    labels: Labels, nodes: int, alpha: float, seed: int
) -> None:
    try:
        shares = dirichlet(labels, nodes, alpha, seed)
    except ConfigError:  # too few samples for so many nodes
        return
    assert len(shares) == nodes
    assert sorted(np.concatenate(shares).tolist()) == list(range(len(labels)))
    assert min(map(len, shares)) >= 1


@given(st.integers(1, 6), st.floats(0.2, 100), seeds)
def test_the_seed_decides_everything(nodes: int, alpha: float, seed: int) -> None:
    labels = np.arange(300) % 5
    first, second = (dirichlet(labels, nodes, alpha, (seed, 3)) for _ in range(2))
    assert all(map(np.array_equal, first, second))


def test_another_seed_gives_another_partition() -> None:
    labels = np.arange(100) % 10
    assert [s.tolist() for s in dirichlet(labels, 5, 1.0, 0)] != [s.tolist() for s in dirichlet(labels, 5, 1.0, 1)]


def test_a_large_alpha_gives_everybody_the_same_of_everything() -> None:
    labels = np.repeat(np.arange(10), 100)
    for share in dirichlet(labels, 5, 1e6, 0):
        assert np.abs(np.bincount(labels[share], minlength=10) - 20).max() <= 1


def test_a_small_alpha_gives_a_class_to_few() -> None:
    labels = np.repeat(np.arange(10), 100)
    held = np.array([np.bincount(labels[share], minlength=10) for share in dirichlet(labels, 10, 0.01, 0)])
    assert np.median(held.max(0)) > 90
    mild = np.array([np.bincount(labels[share], minlength=10) for share in dirichlet(labels, 10, 10.0, 0)])
    assert mild.max() < 40


def test_it_is_drawn_again_until_every_node_has_a_hundredth_of_a_mean_share() -> None:
    """At alpha = 0.01 a draw leaves three of ten nodes with nothing or hardly anything."""
    labels = np.repeat(np.arange(10), 3000)
    for seed in range(5):
        assert min(map(len, dirichlet(labels, 10, 0.01, seed))) >= 30


def test_a_node_without_samples_is_an_error() -> None:
    with pytest.raises(ConfigError, match="alpha = 1e-09 leaves some of 10 nodes without samples"):
        dirichlet(np.zeros(50, np.int64), 10, 1e-9, 0)


def test_shares_are_not_sorted_by_class() -> None:
    labels = np.repeat(np.arange(4), 50)
    mine = labels[dirichlet(labels, 1, 1.0, 0)[0]]
    assert len(set(mine[:20].tolist())) == 4


@pytest.mark.parametrize(
    ("nodes", "alpha", "text"),
    [
        (0, 1.0, "for 0 nodes"),
        (5, 1.0, "4 samples are too few for 5 nodes"),
        (2, 0.0, "alpha = 0.0"),
        (2, -1.0, "alpha = -1.0"),
        (2, float("nan"), "alpha = nan"),
        (2, float("inf"), "alpha = inf"),
    ],
)
def test_what_cannot_be_shared_out_is_one_line(nodes: int, alpha: float, text: str) -> None:
    with pytest.raises(ConfigError) as error:
        dirichlet(np.arange(4), nodes, alpha, 0)
    assert text in str(error.value)
