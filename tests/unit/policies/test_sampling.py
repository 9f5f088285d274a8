from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfl_node.policies.topology import sample
from pfl_node.types import PeerId

TEN = [PeerId(f"n{i}") for i in range(10)]
members = st.lists(st.text("abcdef", min_size=1, max_size=4).map(PeerId), min_size=1, max_size=12, unique=True)
fractions = st.floats(min_value=1e-6, max_value=1.0)


@pytest.mark.parametrize(
    ("fraction", "size"), [(1.0, 10), (0.5, 5), (0.4, 4), (0.1, 1), (0.01, 1), (0.24, 2), (0.26, 3)]
)
def test_it_is_that_fraction_of_the_members_and_at_least_one(fraction: float, size: int) -> None:
    assert len(sample(TEN, fraction=fraction, seed=0, round=0)) == size


@given(members, fractions, st.integers(0, 5), st.integers(0, 50), st.randoms())
def test_every_node_draws_the_same_whatever_order_it_knows_the_members_in(
    names: list[PeerId], fraction: float, seed: int, turn: int, order: object
) -> None:
    mixed = list(names)
    order.shuffle(mixed)  # type: ignore[attr-defined]
    drawn = sample(names, fraction=fraction, seed=seed, round=turn)
    assert drawn == sample([*mixed, names[0]], fraction=fraction, seed=seed, round=turn)
    assert list(drawn) == sorted(drawn)
    assert set(drawn) <= set(names)
    assert len(drawn) >= 1


def test_another_round_and_another_seed_draw_others() -> None:
    rounds = {sample(TEN, fraction=0.3, seed=0, round=t) for t in range(20)}
    seeds = {sample(TEN, fraction=0.3, seed=s, round=0) for s in range(20)}
    assert len(rounds) > 10
    assert len(seeds) > 10


def test_over_many_rounds_everybody_has_the_same_chance() -> None:
    drawn = Counter(m for t in range(2000) for m in sample(TEN, fraction=0.3, seed=0, round=t))
    assert set(drawn) == set(TEN)
    assert all(abs(n - 600) < 5 * (2000 * 0.3 * 0.7) ** 0.5 for n in drawn.values())


@given(members, fractions, st.integers(0, 50))
def test_one_who_comes_or_goes_changes_at_most_two_places(names: list[PeerId], fraction: float, turn: int) -> None:
    """One place is the newcomer's, and the sample may grow by one: two nodes that do not agree on who is there
    still agree on the rest."""
    before = set(sample(names, fraction=fraction, seed=0, round=turn))
    after = set(sample([*names, PeerId("newcomer")], fraction=fraction, seed=0, round=turn))
    assert len(before - after) <= 1
    assert len(after - before) <= 2
