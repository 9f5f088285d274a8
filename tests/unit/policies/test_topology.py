from __future__ import annotations

from collections import Counter
from random import Random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfl_node.policies.topology import Graph, choices, neighbours, recipients, regular, rings, senders
from pfl_node.types import PeerId

sizes, degrees, seeds = st.integers(1, 40), st.integers(0, 9), st.integers(0, 1000)


def members(n: int) -> tuple[PeerId, ...]:
    return tuple(PeerId(f"n{i:03}") for i in range(n))


def without(everybody: tuple[PeerId, ...], i: int) -> tuple[PeerId, tuple[PeerId, ...]]:
    gone = everybody[i % len(everybody)]
    return gone, tuple(m for m in everybody if m != gone)


def edges(graph: Graph) -> set[frozenset[PeerId]]:
    return {frozenset((a, b)) for a, near in graph.items() for b in near}


def reached(graph: Graph, start: PeerId) -> set[PeerId]:
    seen, todo = {start}, [start]
    while todo:
        new = set(graph[todo.pop()]) - seen
        seen |= new
        todo += new
    return seen


def check_symmetric(graph: Graph) -> None:
    for me, near in graph.items():
        assert me not in near
        assert len(set(near)) == len(near)
        assert list(near) == sorted(near)
        assert all(me in graph[other] for other in near)


def check_degrees(graph: Graph, degree: int) -> None:
    n, lengths = len(graph), sorted(len(near) for near in graph.values())
    if n <= degree + 1:
        assert lengths == [n - 1] * n
    elif n % 2 and degree % 2:
        assert lengths == [degree - 1] + [degree] * (n - 1)  # it cannot come out even
    else:
        assert lengths == [degree] * n


# -- the graph of a round --------------------------------------------------------------------------------------


@given(sizes, degrees, seeds)
def test_a_neighbour_is_one_on_both_sides_and_never_oneself(n: int, degree: int, seed: int) -> None:
    graph = regular(members(n), degree, seed, 0)
    assert set(graph) == set(members(n))
    check_symmetric(graph)


@given(sizes, degrees, seeds)
def test_everybody_has_the_same_number_of_neighbours(n: int, degree: int, seed: int) -> None:
    check_degrees(regular(members(n), degree, seed, 0), degree)


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
    with pytest.raises(ValueError, match="the degree is -1"):
        regular(members(3), -1, 0, 0)


@given(st.integers(2, 60), st.integers(1, 5), seeds, seeds)
def test_when_a_member_goes_each_of_its_neighbours_gets_another_and_nothing_else_changes(
    n: int, half: int, seed: int, i: int
) -> None:
    """The promise for even degrees, exactly. Read backwards it is the promise for one who comes."""
    everybody = members(n)
    gone, others = without(everybody, i)
    before, after = regular(everybody, 2 * half, seed, 0), regular(others, 2 * half, seed, 0)
    kept = {e for e in edges(before) if gone not in e}
    assert kept <= edges(after)
    for m in others:
        new = set(after[m]) - set(before[m])
        assert len(new) == (m in before[gone] and n > 2 * half + 1)
        assert new <= set(before[gone])


@pytest.mark.parametrize("n", [20, 50, 200, 1000])
def test_with_an_odd_degree_the_pairs_of_a_few_change_too_however_large_the_swarm_is(n: int) -> None:
    changed = []
    for seed in range(30):
        gone, others = without(members(n), 7 * seed)
        before, after = regular(members(n), 3, seed, 0), regular(others, 3, seed, 0)
        changed.append(sum(set(after[m]) - {gone} != set(before[m]) - {gone} for m in others))
    assert fmean(changed) < 20
    assert max(changed) < 50


@pytest.mark.parametrize("degree", [1, 2, 3, 4])
def test_a_new_graph_every_round_mixes_as_well_as_any_regular_graph(degree: int) -> None:
    """For values x that sum to 0, the mean over random labels of |Wx|^2 / |x|^2, W = (I + A) / (degree + 1), is
    (n / (degree + 1) - 1) / (n - 1) whatever the regular graph is: it depends on the trace of W^2 alone."""
    n, chance = 12, Random(0)
    left = []
    for t in range(1500):
        x = dict(zip(members(n), (chance.gauss(0, 1) for _ in range(n)), strict=True))
        mean = fmean(x.values())
        graph = regular(members(n), degree, 0, t)
        mixed = [(x[m] - mean + sum(x[o] - mean for o in graph[m])) / (degree + 1) for m in graph]
        left.append(sum(v * v for v in mixed) / sum((v - mean) ** 2 for v in x.values()))
    assert fmean(left) == pytest.approx((n / (degree + 1) - 1) / (n - 1), rel=0.06)


# -- the graph that stays --------------------------------------------------------------------------------------


@given(sizes, degrees, seeds)
def test_a_graph_of_rings_is_regular_and_symmetric(n: int, degree: int, seed: int) -> None:
    graph = rings(members(n), degree, seed)
    assert set(graph) == set(members(n))
    check_symmetric(graph)
    check_degrees(graph, degree)
    if degree > 1:
        assert reached(graph, members(n)[0]) == set(members(n))


@given(st.integers(3, 40), seeds, seeds)
def test_a_ring_closes_around_one_who_goes(n: int, seed: int, i: int) -> None:
    gone, others = without(members(n), i)
    before, after = edges(rings(members(n), 2, seed)), edges(rings(others, 2, seed))
    beside = frozenset(rings(members(n), 2, seed)[gone])
    assert after == {e for e in before if gone not in e} | {beside}


@pytest.mark.parametrize(("degree", "most"), [(3, 14), (4, 10), (6, 16)])
def test_of_a_large_graph_of_rings_few_edges_change_with_one_member(degree: int, most: int) -> None:
    """Beside it in each ring two edges become one; the rest is what was crossed."""
    changed = []
    for seed in range(40):
        gone, others = without(members(200), seed)
        changed.append(len(edges(rings(members(200), degree, seed)) ^ edges(rings(others, degree, seed))))
        assert gone not in rings(others, degree, seed)
    assert fmean(changed) < most


def test_a_graph_that_stays_has_short_ways() -> None:
    """A ring of 200 with chords to the second next needs 50 steps across; random rings about log(n)."""
    graph, n = rings(members(200), 4, 0), 200
    reach, steps = {members(n)[0]}, 0
    while len(reach) < n:
        reach |= {o for m in reach for o in graph[m]}
        steps += 1
    assert steps <= 8


# -- everybody chooses -----------------------------------------------------------------------------------------


@given(sizes, degrees, seeds)
def test_everybody_picks_so_many_others_and_knows_who_picked_it(n: int, degree: int, seed: int) -> None:
    to, of = choices(members(n), degree, seed, 0)
    for me, picked in to.items():
        assert me not in picked
        assert len(set(picked)) == len(picked) == min(degree, n - 1)
        assert list(picked) == sorted(picked)
    assert {(a, b) for a, picked in to.items() for b in picked} == {(a, b) for b, came in of.items() for a in came}


@given(st.integers(2, 40), st.integers(1, 9), seeds, seeds)
def test_when_a_member_goes_only_those_who_had_picked_it_pick_one_other(
    n: int, degree: int, seed: int, i: int
) -> None:
    gone, others = without(members(n), i)
    before, after = choices(members(n), degree, seed, 0)[0], choices(others, degree, seed, 0)[0]
    for m in others:
        assert set(before[m]) - {gone} <= set(after[m])
        if gone not in before[m]:
            assert before[m] == after[m]


def test_all_pick_alike_whoever_computes_it() -> None:
    a, b, *rest = members(9)
    drawn = {"degree": 3, "seed": 5, "round": 2}
    assert (b in recipients(a, [b, *rest], **drawn)) == (a in senders(b, [*rest, a], **drawn))
    to, of = choices(members(9), 3, 5, 2)
    assert recipients(a, [b, *rest], **drawn) == to[a]
    assert senders(b, [a, *rest], **drawn) == of[b]


def test_every_peer_is_picked_as_often_as_any_other_and_without_regard_to_whom_others_pick() -> None:
    n, degree, rounds = 10, 3, 2000
    pairs, both = Counter[tuple[PeerId, PeerId]](), 0
    a, b, c, *_ = members(n)
    for t in range(rounds):
        to = choices(members(n), degree, 1, t)[0]
        pairs.update((m, o) for m in to for o in to[m])
        both += c in to[a] and c in to[b]
    share = degree / (n - 1)
    assert len(pairs) == n * (n - 1)
    assert all(abs(k / rounds - share) < 0.055 for k in pairs.values())  # 5 standard deviations
    assert abs(both / rounds - share**2) < 0.04


def test_the_picks_of_a_round_do_not_change_between_versions() -> None:
    to, of = choices(members(5), 2, 0, 0)
    assert to == {
        "n000": ("n002", "n003"),
        "n001": ("n002", "n004"),
        "n002": ("n000", "n004"),
        "n003": ("n000", "n002"),
        "n004": ("n001", "n002"),
    }
    assert of[members(5)[0]] == ("n002", "n003")


def test_a_negative_number_of_picks_is_an_error() -> None:
    for draw in (lambda: choices(members(3), -1, 0, 0), lambda: rings(members(3), -1, 0)):
        with pytest.raises(ValueError, match="the degree is -1"):
            draw()
