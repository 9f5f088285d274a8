"""Clusters from who learns with whom."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from pfl_node.ops.clusters import find_clusters


def names(start: int, n: int) -> list[str]:
    return [f"n{i:02d}" for i in range(start, start + n)]


def mixed(
    groups: list[list[str]], *, within: float, between: float, picks: int = 0, seed: int = 0
) -> dict[str, dict[str, float]]:
    """All learn with all of their group, or with some of them; and a little with everybody else."""
    rng = random.Random(seed)
    everybody = [name for group in groups for name in group]
    weights = {}
    for group in groups:
        for me in group:
            mine = [peer for peer in group if peer != me]
            chosen = rng.sample(mine, min(picks, len(mine))) if picks else mine
            others = [peer for peer in everybody if peer not in group]
            weights[me] = {**dict.fromkeys(chosen, within), **dict.fromkeys(others, between)}
    return weights


def test_two_groups_that_learn_apart_are_found_and_fully_separate() -> None:
    found = find_clusters(mixed([names(0, 6), names(6, 6)], within=1.0, between=0.0))
    assert found.groups == (tuple(names(0, 6)), tuple(names(6, 6)))
    assert found.separation == 1.0
    assert found.clear


def test_a_small_group_beside_a_large_one_is_found_too() -> None:
    found = find_clusters(mixed([names(0, 30), names(30, 2)], within=1.0, between=0.0))
    assert [len(group) for group in found.clear] == [30, 2]


def test_some_learning_across_does_not_hide_them() -> None:
    found = find_clusters(mixed([names(0, 8), names(8, 8), names(16, 8)], within=1.0, between=0.05))
    assert [len(group) for group in found.groups] == [8, 8, 8]
    assert 0.5 < found.separation < 1


def test_where_all_learn_with_all_there_are_no_clusters() -> None:
    found = find_clusters(mixed([names(0, 12)], within=1.0, between=0.0))
    assert not found.clear


def test_a_few_first_ties_are_no_clusters_yet() -> None:
    weights = mixed([names(0, 6), names(6, 6)], within=1.0, between=0.0, picks=1)
    assert find_clusters(weights).separation > 0.5
    assert not find_clusters(weights).clear


def test_one_who_learns_alone_is_no_cluster() -> None:
    found = find_clusters({**mixed([names(0, 6), names(6, 6)], within=1.0, between=0.0), "alone": {}})
    assert found.clear == (tuple(names(0, 6)), tuple(names(6, 6)))


def test_random_partners_are_no_clusters() -> None:
    """As `el` draws them: over ten rounds everybody has met most of the others."""
    for seed in range(5):
        rng = random.Random(seed)
        everybody = names(0, 24)
        weights = {me: {peer: float(rng.randint(0, 3)) for peer in everybody if peer != me} for me in everybody}
        assert not find_clusters(weights).clear


def test_who_learns_alone_is_a_group_of_one_and_nobody_gives_nothing() -> None:
    assert find_clusters({"ann": {}, "bob": {}}).groups == (("ann",), ("bob",))
    assert find_clusters({}).groups == ()
    assert find_clusters({}).separation == 0.0


def test_three_hundred_nodes_are_no_trouble() -> None:
    groups = [names(i * 60, 60) for i in range(5)]
    found = find_clusters(mixed(groups, within=1.0, between=0.0, picks=8))
    assert all(any(set(group) <= set(truth) for truth in groups) for group in found.groups)
    assert found.clear


@given(
    st.dictionaries(
        st.sampled_from("abcdefgh"),
        st.dictionaries(st.sampled_from("abcdefgh"), st.floats(0, 100)),
    )
)
def test_everybody_is_in_exactly_one_group(weights: dict[str, dict[str, float]]) -> None:
    found = find_clusters(weights)
    named = {*weights, *(other for row in weights.values() for other in row)}
    assert sorted(name for group in found.groups for name in group) == sorted(named)
    assert -1.0 <= found.separation <= 1.0 + 1e-6
