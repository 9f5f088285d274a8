"""How long a finished node keeps serving its peers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pfl_node.node.linger import LingerTimer
from pfl_node.types import PeerId

A, B = PeerId("a"), PeerId("b")


def test_it_goes_when_nobody_is_at_work() -> None:
    assert LingerTimer(60.0).left(0.0, {}) == 0.0


def test_it_stays_as_long_as_somebody_gets_on_and_some_time_longer() -> None:
    stay = LingerTimer(60.0)
    assert stay.left(100.0, {A: 3}) == 60.0
    assert stay.left(150.0, {A: 4}) == 60.0
    assert stay.left(200.0, {A: 4, B: 1}) == 10.0
    assert stay.left(210.0, {A: 4, B: 1}) == 0.0


def test_going_back_and_coming_anew_are_not_getting_on() -> None:
    stay = LingerTimer(60.0)
    stay.left(0.0, {A: 9})
    assert stay.left(30.0, {A: 2}) == 30.0
    assert stay.left(40.0, {A: 9}) == 20.0
    assert stay.left(50.0, {A: 9, B: 5}) == 10.0


@given(st.lists(st.tuples(st.sampled_from([A, B]), st.integers(0, 4)), min_size=1, max_size=200))
def test_whatever_is_said_it_ends(said: list[tuple[PeerId, int]]) -> None:
    stay, now = LingerTimer(10.0), 0.0
    for peer, round in said:
        left = stay.left(now, {peer: round})
        if left == 0.0:
            break
        now += 9.0
    # two peers can make progress four times each
    assert now <= 10.0 + 9 * 9.0
