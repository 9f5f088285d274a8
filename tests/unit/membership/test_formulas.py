"""The numbers of SWIM and Lifeguard."""

from __future__ import annotations

from collections import Counter, deque
from math import isclose

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfl_node.membership.formulas import (
    confirmations_wanted,
    fingers,
    retransmissions,
    suspicion_bounds,
    suspicion_timeout,
)


@pytest.mark.parametrize(
    ("n", "shortest", "longest"),
    [(0, 4, 24), (1, 4, 24), (5, 4, 24), (10, 4, 24), (50, 6.796, 40.776), (100, 8, 48), (1000, 12, 72)],
)
def test_a_suspicion_lasts_longer_in_a_larger_swarm(n: int, shortest: float, longest: float) -> None:
    assert suspicion_bounds(n, 4, 1.0) == pytest.approx((shortest, longest), abs=1e-3)


@pytest.mark.parametrize(
    ("confirmed", "wanted", "seconds"),
    # memberlist's own table: 2 to 30 s, three confirmations wanted
    [(0, 3, 30), (1, 3, 16), (2, 3, 7.810), (3, 3, 2), (4, 3, 2), (10, 3, 2), (0, 0, 2), (5, 0, 2)],
)
def test_a_suspicion_shrinks_with_the_logarithm_of_its_confirmations(
    confirmed: int, wanted: int, seconds: float
) -> None:
    assert suspicion_timeout(confirmed, wanted, 2, 30) == pytest.approx(seconds, abs=1e-3)


@pytest.mark.parametrize(("n", "wanted"), [(1, 0), (2, 0), (3, 0), (4, 2), (5, 2), (100, 2)])
def test_nobody_waits_for_confirmations_that_cannot_come(n: int, wanted: int) -> None:
    assert confirmations_wanted(n, 4) == wanted


@pytest.mark.parametrize(("n", "times"), [(1, 4), (2, 4), (9, 4), (10, 8), (50, 8), (99, 8), (100, 12), (999, 12)])
def test_a_rumour_is_told_more_often_in_a_larger_swarm(n: int, times: int) -> None:
    assert retransmissions(n, 4) == times


@given(st.integers(1, 60), st.integers(2, 10))
def test_fingers_are_k_different_others(n: int, k: int) -> None:
    others = [f"node-{i}" for i in range(1, n)]
    chosen = fingers("node-0", others, k)
    assert len(chosen) == len(set(chosen)) == min(k, n - 1)
    assert set(chosen) <= set(others)
    assert chosen == fingers("node-0", others, k)


def test_everybody_is_probed_by_somebody_and_all_are_few_steps_apart() -> None:
    ids = [f"node-{i}" for i in range(200)]
    near = {i: fingers(i, [other for other in ids if other != i], 8) for i in ids}
    watched = Counter(finger for chosen in near.values() for finger in chosen)
    assert set(watched) == set(ids)
    assert max(_steps(near, start) for start in ids[:10]) <= 8


def _steps(near: dict[str, list[str]], start: str) -> int:
    reached, queue = {start: 0}, deque([start])
    while queue:
        here = queue.popleft()
        for there in near[here]:
            if there not in reached:
                reached[there] = reached[here] + 1
                queue.append(there)
    assert len(reached) == len(near)
    return max(reached.values())


def test_a_newcomer_changes_few_fingers() -> None:
    ids = [f"node-{i}" for i in range(100)]
    before = {i: set(fingers(i, [o for o in ids if o != i], 8)) for i in ids}
    after = {i: set(fingers(i, [o for o in [*ids, "new"] if o != i], 8)) for i in ids}
    changed = sum(before[i] != after[i] for i in ids)
    assert changed < 30
    assert isclose(len(after["node-0"]), 8)
