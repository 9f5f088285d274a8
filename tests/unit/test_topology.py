from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfl_node.topology import Graph, neighbours, regular
from pfl_node.types import PeerId

sizes, degrees, seeds = st.integers(1, 40), st.integers(0, 9), st.integers(0, 1000)


def members(n: int) -> tuple[PeerId, ...]:
    return tuple(PeerId(f"n{i:03}") for i in range(n))


def reached(graph: Graph, start: PeerId) -> set[PeerId]:
    seen, todo = {start}, [start]
    while todo:
        new = set(graph[todo.pop()]) - seen
        seen |= new
        todo += new
    return seen


@given(sizes, degrees, seeds)
def test_a_neighbour_is_one_on_both_sides_and_never_oneself(n: int, degree: int, seed: int) -> None:
    graph = regular(members(n), degree, seed, 0)
    assert set(graph) == set(members(n))
    for me, near in graph.items():
        assert me not in near
        assert len(set(near)) == len(near)
        assert list(near) == sorted(near)
        assert all(me in graph[other] for other in near)


@given(sizes, degrees, seeds)
def test_everybody_has_the_same_number_of_neighbours(n: int, degree: int, seed: int) -> None:
    lengths = sorted(len(near) for near in regular(members(n), degree, seed, 0).values())
    if n <= degree + 1:
        assert lengths == [n - 1] * n
    elif n % 2 and degree % 2:
        assert lengths == [degree - 1] + [degree] * (n - 1)  # it cannot come out even
    else:
        assert lengths == [degree] * n


@given(sizes, st.integers(2, 9), seeds, st.integers(0, 50))
def test_from_two_neighbours_on_the_graph_is_connected(n: int, degree: int, seed: int, round: int) -> None:
    graph = regular(members(n), degree, seed, round)
    assert reached(graph, members(n)[0]) == set(members(n))


@given(sizes, degrees, seeds, st.randoms())
def test_all_nodes_compute_the_same_graph_in_whatever_order_they_know_each_other(
    n: int, degree: int, seed: int, chance: Random
) -> None:
    everybody = members(n)
    graph = regular(everybody, degree, seed, 3)
    for me in everybody:
        others = [p for p in everybody if p != me]
        chance.shuffle(others)
        assert neighbours(me, others, degree=degree, seed=seed, round=3) == graph[me]


def test_every_round_and_every_seed_has_its_own_graph() -> None:
    graphs = [regular(members(20), 4, seed, round) for seed in range(5) for round in range(10)]
    assert len({str(g) for g in graphs}) == 50


@pytest.mark.parametrize("n", [6, 7, 12, 30])
def test_over_the_rounds_everybody_meets_everybody(n: int) -> None:
    me, *others = members(n)
    met = {p for t in range(60) for p in neighbours(me, others, degree=4, seed=1, round=t)}
    assert met == set(others)


def test_the_graph_of_a_round_does_not_change_between_versions() -> None:
    assert regular(members(6), 2, 0, 0) == {
        "n000": ("n002", "n004"),
        "n001": ("n003", "n004"),
        "n002": ("n000", "n005"),
        "n003": ("n001", "n005"),
        "n004": ("n000", "n001"),
        "n005": ("n002", "n003"),
    }


def test_alone_there_is_nobody_and_in_a_small_swarm_everybody() -> None:
    a, b, c = members(3)
    assert neighbours(a, [], degree=4, seed=0, round=0) == ()
    assert neighbours(a, [b], degree=4, seed=0, round=0) == (b,)
    assert neighbours(b, [a, c], degree=4, seed=0, round=0) == (a, c)


def test_one_that_lists_itself_among_its_peers_is_not_its_own_neighbour() -> None:
    a, b, c = members(3)
    assert neighbours(a, [a, b, c], degree=4, seed=0, round=0) == (b, c)


def test_a_negative_degree_is_an_error() -> None:
    with pytest.raises(ValueError, match="a degree of -1"):
        regular(members(3), -1, 0, 0)
