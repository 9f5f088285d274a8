"""Which news about a member wins."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfl_node.membership.member import Member, State, may_update, merge, supersedes

ALIVE, SUSPECT, DEAD, LEFT = State
ONE = Member("a", "node-a", "10.0.0.1:7000")


@pytest.mark.parametrize(
    ("old", "new", "wins"),
    [
        ((ALIVE, 1), (ALIVE, 1), False),
        ((ALIVE, 1), (SUSPECT, 1), True),
        ((ALIVE, 1), (DEAD, 1), True),
        ((ALIVE, 1), (LEFT, 1), True),
        ((SUSPECT, 1), (ALIVE, 1), False),  # only the member itself refutes
        ((SUSPECT, 1), (ALIVE, 2), True),  # which it does like this
        ((SUSPECT, 2), (DEAD, 1), False),  # a death of an earlier life
        ((SUSPECT, 1), (DEAD, 1), True),
        ((DEAD, 1), (ALIVE, 1), False),  # old gossip revives nobody
        ((DEAD, 1), (SUSPECT, 1), False),
        ((DEAD, 1), (ALIVE, 2), True),  # back, or never gone
        ((DEAD, 1), (SUSPECT, 2), True),  # refuted, and suspected again since
        ((DEAD, 1), (LEFT, 1), True),  # its goodbye arrived late
        ((LEFT, 1), (DEAD, 1), False),  # nobody dies after a goodbye
        ((LEFT, 1), (SUSPECT, 1), False),
        ((LEFT, 1), (ALIVE, 2), True),  # started again
        ((ALIVE, 3), (LEFT, 2), False),  # the goodbye of an earlier life
    ],
)
def test_the_higher_incarnation_wins_and_within_one_the_later_state(
    old: tuple[State, int], new: tuple[State, int], wins: bool
) -> None:
    before = replace(ONE, state=old[0], incarnation=old[1])
    after = replace(ONE, state=new[0], incarnation=new[1])
    assert supersedes(after, before) is wins
    assert merge(before, after) == (after if wins else before)


def test_within_one_incarnation_the_round_only_goes_forward() -> None:
    assert merge(replace(ONE, round=7), replace(ONE, round=9)).round == 9
    assert merge(replace(ONE, round=7), replace(ONE, round=5)).round == 7
    assert merge(replace(ONE, round=7), replace(ONE, round=5, state=SUSPECT)).round == 7


def test_a_new_life_may_be_elsewhere_and_in_an_earlier_round() -> None:
    life = replace(ONE, incarnation=1, round=2, address="10.0.0.9:7000")
    assert merge(replace(ONE, round=30), life) == life


def test_one_incarnation_is_one_address() -> None:
    merged = merge(ONE, replace(ONE, state=DEAD, address="10.9.9.9:1"))
    assert merged == replace(ONE, state=DEAD)


def test_hearing_the_same_again_gives_the_same_object_back() -> None:
    known = replace(ONE, round=3)
    assert merge(known, replace(ONE, round=3)) is known
    assert not may_update(replace(ONE, round=2), known)


beliefs = st.builds(
    lambda incarnation, state, round: replace(ONE, incarnation=incarnation, state=state, round=round),
    st.integers(0, 3),
    st.sampled_from(State),
    st.integers(0, 3),
)


@given(beliefs, beliefs, beliefs)
def test_the_order_of_hearing_does_not_matter(a: Member, b: Member, c: Member) -> None:
    assert merge(a, b) == merge(b, a)
    assert merge(merge(a, b), c) == merge(a, merge(b, c))
    assert merge(a, a) is a


@given(beliefs, beliefs)
def test_what_is_no_news_changes_nothing(old: Member, new: Member) -> None:
    if not may_update(new, old):
        assert merge(old, new) is old
    if supersedes(new, old):
        assert may_update(new, old)
