"""What all partitions promise, and what each of them is for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfl_node.errors import ConfigError
from pfl_node.learning.partition import Indices, clusters, dirichlet, iid, in_turn, paired_shards, quantity, shards

Split = Callable[[Any, int, int], list[Indices]]

SPLITS: dict[str, Split] = {
    "iid": iid,
    "shards": shards,
    "paired shards": paired_shards,
    "dirichlet": lambda y, nodes, seed: dirichlet(y, nodes, 0.5, seed),
    "quantity 1": lambda y, nodes, seed: quantity(y, nodes, 1, seed),
    "quantity 10": lambda y, nodes, seed: quantity(y, nodes, 10, seed),
}
every = pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS)
labels = st.lists(st.integers(0, 9), min_size=24, max_size=200).map(np.array)
nodes = st.integers(1, 12)
seeds = st.integers(0, 2**31)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=4).filter(any), st.integers(1, 3))
def test_clusters_have_their_places_in_turn_by_their_weights(weights: list[int], times: int) -> None:
    places = [in_turn(index, weights) for index in range(sum(weights) * times)]
    assert [places.count(cluster) for cluster in range(len(weights))] == [times * weight for weight in weights]
    for n in range(len(places)):
        for cluster, weight in enumerate(weights):
            assert abs(places[:n].count(cluster) - n * weight / sum(weights)) < 2


@every
@given(labels, nodes, seeds)
def test_nothing_is_lost_nothing_is_twice_and_nobody_has_nothing(
    split: Split, labels: Indices, nodes: int, seed: int
) -> None:
    found = split(labels, nodes, seed)
    assert len(found) == nodes
    assert sorted(np.concatenate(found)) == list(range(len(labels)))
    assert min(map(len, found)) >= 1


@every
@given(labels, nodes, seeds)
def test_the_same_seed_gives_the_same_split(split: Split, labels: Indices, nodes: int, seed: int) -> None:
    assert all(map(np.array_equal, split(labels, nodes, seed), split(labels, nodes, seed)))


@every
def test_another_seed_gives_another_split(split: Split) -> None:
    labels = np.arange(300) % 10
    assert not all(map(np.array_equal, split(labels, 6, 0), split(labels, 6, 1)))


@every
def test_more_nodes_than_samples_are_one_clear_line(split: Split) -> None:
    with pytest.raises(ConfigError, match=r"19 samples are too few for .*20 nodes"):
        split(np.arange(19), 20, 0)
    with pytest.raises(ConfigError, match="a partition for 0 nodes"):
        split(np.arange(19), 0, 0)


@given(labels, nodes, seeds)
def test_iid_shares_are_equally_large(labels: Indices, nodes: int, seed: int) -> None:
    sizes = [len(share) for share in iid(labels, nodes, seed)]
    assert max(sizes) - min(sizes) <= 1


def test_iid_shares_hold_every_class() -> None:
    labels = np.arange(5000) % 10
    assert all(len(set(labels[share])) == 10 for share in iid(labels, 50, 0))


def test_two_shards_are_two_classes_as_in_the_fedavg_paper() -> None:
    """ "sort the data by digit label, divide it into 200 shards of size 300, and assign each of 100 clients 2" """
    labels = np.random.default_rng(0).permutation(np.arange(60_000) % 10)
    found = shards(labels, 100, 0)
    assert {len(share) for share in found} == {600}
    assert max(len(set(labels[share])) for share in found) == 2  # 6,000 of each class: no shard has two


@given(labels, nodes, seeds)
def test_a_share_of_two_shards_is_two_runs_of_the_sorted_samples(labels: Indices, nodes: int, seed: int) -> None:
    place = np.empty(len(labels), int)
    place[np.argsort(labels, kind="stable")] = np.arange(len(labels))
    for share in shards(labels, nodes, seed):
        assert np.count_nonzero(np.diff(np.sort(place[share])) > 1) <= 1


def test_the_smaller_alpha_the_more_unequal_are_the_quantities_but_not_the_classes() -> None:
    labels = np.arange(10_000) % 10
    even, uneven = (quantity(labels, 10, alpha, 0) for alpha in (1000, 0.2))
    assert max(map(len, even)) / min(map(len, even)) < 1.3
    assert max(map(len, uneven)) / min(map(len, uneven)) > 10
    large = max(uneven, key=len)
    np.testing.assert_allclose(np.bincount(labels[large]) / len(large), 0.1, atol=0.02)


@pytest.mark.parametrize("alpha", [0, -1, float("nan"), float("inf")])
def test_an_alpha_that_cannot_be_is_one_clear_line(alpha: float) -> None:
    with pytest.raises(ConfigError, match="is not above zero"):
        quantity(np.arange(10), 2, alpha, 0)


sizes = st.lists(st.integers(0, 12), min_size=1, max_size=4).filter(lambda c: sum(c) > 0)


@given(sizes, st.integers(0, 400), seeds)
def test_clusters_are_disjoint_and_as_large_as_their_nodes_are_many(
    sizes: list[int], more: int, seed: int
) -> None:
    samples = sum(sizes) + more
    found = clusters(samples, sizes, seed)
    assert sorted(np.concatenate(found)) == list(range(samples))
    for size, part in zip(sizes, found, strict=True):
        assert abs(len(part) - samples * size / sum(sizes)) < 1
        assert len(part) >= size  # so that every node can have one


def test_sizes_that_cannot_be_are_one_clear_line() -> None:
    with pytest.raises(ConfigError, match="are not valid numbers of nodes"):
        clusters(100, [3, -1], 0)


def test_paired_shards_are_of_two_labels_that_are_half_of_the_labels_apart() -> None:
    """The slides: "client with knowledge of label i will have knowledge of label i + 5"."""
    labels = np.random.default_rng(0).permutation(np.arange(6000) % 10)
    known = [sorted(set(labels[mine].tolist())) for mine in paired_shards(labels, 100, 0)]
    assert known == [[c // 20, c // 20 + 5] for c in range(100)]
