from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pfl_node.errors import ConfigError
from pfl_node.learning.allocation import (
    PARTITIONS,
    SKEWED,
    AllocationPlan,
    Share,
    Tests,
    allocator_of,
    for_testing,
    seat,
    set_aside,
)
from pfl_node.learning.datasets import Dataset, Images


def labels_only(train: int, test: int = 100, classes: int = 10) -> Dataset:
    """Who gets what does not depend on pixels."""

    def images(n: int) -> Images:
        return Images(np.zeros((n, 1, 1, 1), np.uint8), np.arange(n) % classes)

    return Dataset("toy", images(train), images(test), classes)


DATA = labels_only(2000)
counts = st.lists(st.integers(0, 12), min_size=1, max_size=4).filter(lambda c: sum(c) > 0).map(tuple)
seeds = st.integers(0, 2**31)
every = pytest.mark.parametrize("partition", PARTITIONS)


def plan_for(partition: str, counts: tuple[int, ...], seed: int = 0, **more: int | None) -> AllocationPlan:
    alpha = 0.5 if partition in SKEWED else None
    return AllocationPlan(counts=counts, seed=seed, partition=partition, alpha=alpha, **more)  # type: ignore[arg-type]


def everybody(plan: AllocationPlan, data: Dataset = DATA) -> list[Share]:
    return [allocator_of(data, plan).indexed(i) for i in range(sum(plan.counts))]


def whole(share: Share) -> set[int]:
    return set(share.train.tolist()) | set(held(share))


def held(share: Share) -> list[int]:
    return [] if share.val is None else list(share.val.tolist())


@every
@settings(max_examples=40)
@given(counts, seeds, st.sampled_from([0, 300]))
def test_every_image_is_at_one_node_or_set_aside(
    partition: str, counts: tuple[int, ...], seed: int, aside: int
) -> None:
    plan = plan_for(partition, counts, seed, aside=aside)
    shares = everybody(plan)
    apart = set_aside(DATA, plan).tolist()
    assert len(apart) == aside
    found = [i for share in shares for i in [*share.train.tolist(), *held(share)]]
    assert sorted([*found, *apart]) == list(range(2000))


@every
@settings(max_examples=20)
@given(counts, seeds)
def test_the_same_seed_gives_the_same_shares(partition: str, counts: tuple[int, ...], seed: int) -> None:
    plan = plan_for(partition, counts, seed)
    again = labels_only(2000)  # nothing remembered
    for mine, other in zip(everybody(plan), everybody(plan, again), strict=True):
        assert mine.cluster == other.cluster
        assert np.array_equal(mine.train, other.train)
        assert held(mine) == held(other)


@given(counts, seeds)
def test_the_first_places_are_the_first_cluster(counts: tuple[int, ...], seed: int) -> None:
    expected = [c for c, size in enumerate(counts) for _ in range(size)]
    assert [s.cluster for s in everybody(plan_for("iid", counts, seed))] == expected


@given(counts, seeds)
def test_every_node_has_the_same_amount_whatever_its_cluster(counts: tuple[int, ...], seed: int) -> None:
    """ "24 nodes have 3/4 of the dataset": FACADE, section 4.1.3."""
    sizes = [len(s.train) for s in everybody(plan_for("iid", counts, seed, val=0))]
    assert max(sizes) - min(sizes) <= 2


@pytest.mark.parametrize(("nodes", "val", "train"), [(50, 125, 875), (200, 125, 125), (1000, 25, 25)])
def test_the_thesis_sizes_of_train_and_validation(nodes: int, val: int, train: int) -> None:
    """Thesis 000, table 3.4: all of 50,000 images."""
    shares = everybody(plan_for("iid", (nodes // 2, nodes // 2), val=val), labels_only(50_000))
    assert {(len(s.train), len(held(s))) for s in shares} == {(train, val)}


@given(counts, seeds, st.integers(1, 30), st.integers(0, 20))
def test_so_many_samples_are_for_training_and_so_many_more_for_validation(
    counts: tuple[int, ...], seed: int, samples: int, val: int
) -> None:
    if (samples + val) * sum(counts) > 2000 - sum(counts):
        return
    shares = everybody(plan_for("iid", counts, seed, samples=samples, val=val))
    assert {len(s.train) for s in shares} == {samples}
    assert {len(held(s)) for s in shares} == {val}
    found = [i for s in shares for i in whole(s)]
    assert len(found) == len(set(found)) == (samples + val) * sum(counts)


def test_without_a_word_a_tenth_is_for_validation() -> None:
    assert {(len(s.train), len(held(s))) for s in everybody(plan_for("iid", (10,)))} == {(180, 20)}
    assert {(len(s.train), len(held(s))) for s in everybody(plan_for("iid", (10,), samples=50))} == {(50, 5)}
    assert everybody(plan_for("iid", (500,)))[0].val is None


def test_a_node_with_hardly_any_images_keeps_half_of_them_for_training() -> None:
    shares = everybody(plan_for("quantity", (40,), val=50))
    assert min(len(whole(s)) for s in shares) < 50
    assert all(len(s.train) >= 1 for s in shares)
    assert max(len(held(s)) for s in shares) == 50


@given(counts, seeds, st.text(max_size=20), st.none() | st.integers(1, 40))
def test_a_node_with_only_an_id_draws_its_share_with_it(
    counts: tuple[int, ...], seed: int, node_id: str, samples: int | None
) -> None:
    plan = plan_for("iid", counts, seed, samples=samples)
    first, second = (allocator_of(DATA, plan).drawn(node_id, None) for _ in range(2))
    assert first.cluster == second.cluster
    assert np.array_equal(first.train, second.train)
    assert held(first) == held(second)
    assert counts[first.cluster] > 0
    assert whole(first) <= set(allocator_of(DATA, plan).pools[first.cluster].tolist())
    assert samples is None or len(first.train) == samples


def test_ids_fall_into_the_clusters_by_their_sizes() -> None:
    clusters = [allocator_of(DATA, plan_for("iid", (3, 1))).drawn(f"node-{i}", None).cluster for i in range(400)]
    assert 0.65 < clusters.count(0) / 400 < 0.85


def test_a_drawn_share_is_as_large_as_an_indexed_one_where_the_number_of_nodes_is_known() -> None:
    assert len(whole(allocator_of(DATA, plan_for("iid", (1,))).drawn("me", None))) == 500
    assert len(whole(allocator_of(DATA, plan_for("iid", (1,))).drawn("me", 20))) == 100
    assert len(whole(allocator_of(DATA, plan_for("iid", (1,))).drawn("me", 10_000))) == 1


@given(st.integers(1, 5))
def test_the_clusters_part_the_test_images(clusters: int) -> None:
    parts = [for_testing(DATA, clusters, c, "part") for c in range(clusters)]
    assert sorted(np.concatenate(parts)) == list(range(100))


def test_a_cluster_can_have_all_test_images_or_some_of_its_part() -> None:
    assert for_testing(DATA, 2, 1, "all").tolist() == list(range(100))
    some = for_testing(DATA, 2, 1, 20)
    assert len(some) == 20
    assert set(some) <= set(for_testing(DATA, 2, 1, "part"))


def test_a_place_that_is_not_there_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match="there are 5 places, and this is number 5"):
        seat((3, 2), 5)


@pytest.mark.parametrize(
    ("plan", "text"),
    [
        (
            plan_for("iid", (30, 2), samples=60, val=10),
            "each of the cluster's 30 nodes can have only 62 images of toy",
        ),
        (plan_for("iid", (30, 2), val=62), "task.val = 62, but a node has only 62 images of toy in all"),
        (plan_for("iid", (1500, 501)), "2000 samples are too few for 2001 nodes"),
        (plan_for("iid", (8,), aside=1995), "5 samples are too few for 8 nodes"),
        (plan_for("shards", (1500,)), "2000 samples are too few for 2 shards for each of 1500 nodes"),
    ],
)
def test_more_than_there_is_cannot_be_given_out(plan: AllocationPlan, text: str) -> None:
    with pytest.raises(ConfigError) as error:
        everybody(plan)
    assert text in str(error.value)
    assert "\n" not in str(error.value)


def test_what_does_not_go_together_is_said() -> None:
    with pytest.raises(ConfigError, match=r"needs task.alpha"):
        AllocationPlan(counts=(2,), seed=0, partition="dirichlet")
    with pytest.raises(ConfigError, match=r"task.alpha is for task.partition = dirichlet or quantity, not iid"):
        AllocationPlan(counts=(2,), seed=0, alpha=1.0)
    with pytest.raises(ConfigError, match=r"allocates all images: leave out task.samples"):
        AllocationPlan(counts=(2,), seed=0, partition="shards", samples=3)
    with pytest.raises(ConfigError, match=r"say which place this is, task.index"):
        allocator_of(DATA, plan_for("shards", (2,))).drawn("me", None)
    with pytest.raises(ConfigError, match="the cluster has only 2000 images of toy in all"):
        allocator_of(DATA, plan_for("iid", (2,), samples=3000)).drawn("me", None)


@pytest.mark.parametrize("wanted", [51])
def test_more_test_images_than_a_cluster_has_are_a_mistake(wanted: Tests) -> None:
    with pytest.raises(ConfigError, match="each of 2 clusters has 50 test images"):
        for_testing(DATA, 2, 0, wanted)
