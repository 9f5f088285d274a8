"""Back-off of dials: failures leave a peer out, and only a successful dial brings it back."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from pfl_node.types import PeerId
from pfl_node.wire.dials import FIRST, JITTER, LONGEST, REPEATED, SOONEST, Dials

BOB, PLACE = PeerId("bob"), "10.0.0.1:7000"


def failing(times: int, now: float = 0.0) -> Dials:
    dials = Dials(Random(1))
    for _ in range(times):
        dials.failed(BOB, PLACE, "no answer", now)
    return dials


def test_a_peer_that_was_never_dialled_is_included_unless_it_says_that_nobody_can_connect() -> None:
    dials = failing(0)
    assert dials.includes(BOB, PLACE)
    assert not dials.includes(BOB, PLACE, unreachable=True)
    assert dials.wait(BOB, PLACE, 0.0) == 0.0


def test_one_failed_dial_delays_the_next_and_repeated_ones_leave_the_peer_out() -> None:
    dials = failing(1)
    assert dials.includes(BOB, PLACE)
    assert dials.wait(BOB, PLACE, 0.0) > 0
    assert not failing(REPEATED).includes(BOB, PLACE)


def test_a_successful_dial_makes_up_for_all_failed_ones() -> None:
    dials = failing(9)
    dials.succeeded(BOB, PLACE, 1.0)
    assert dials.includes(BOB, PLACE)
    assert dials.includes(BOB, PLACE, unreachable=True)
    assert dials.wait(BOB, PLACE, 1.0) == 0.0


def test_a_peer_at_a_new_address_starts_without_failures() -> None:
    dials = failing(9)
    assert dials.includes(BOB, "10.0.0.2:7000")
    assert dials.wait(BOB, "10.0.0.2:7000", 0.0) == 0.0


def test_news_of_a_peer_brings_the_next_dial_forward_but_does_not_include_it() -> None:
    dials = failing(9, now=5.0)
    assert dials.wait(BOB, PLACE, 5.0) > SOONEST
    dials.dial_soon(BOB)
    assert dials.wait(BOB, PLACE, 5.0) == SOONEST
    assert not dials.includes(BOB, PLACE)


def test_a_dial_that_fails_later_leaves_an_unreachable_peer_out_again() -> None:
    dials = failing(0)
    dials.succeeded(BOB, PLACE, 0.0)
    dials.failed(BOB, PLACE, "no answer", 1.0)
    assert not dials.includes(BOB, PLACE, unreachable=True)


@given(st.integers(1, 200), st.integers())
def test_the_wait_grows_and_is_bounded(failures: int, seed: int) -> None:
    dials = Dials(Random(seed))
    for _ in range(failures):
        dials.failed(BOB, PLACE, "no answer", 0.0)
    usual = min(FIRST * 2 ** (failures - 1), LONGEST)
    assert (1 - JITTER) * usual <= dials.wait(BOB, PLACE, 0.0) <= (1 + JITTER) * usual


def test_who_watches_is_told_of_failures_and_of_the_first_success() -> None:
    told: list[str] = []
    dials = Dials(Random(1), told.append)
    dials.failed(BOB, PLACE, "no answer", 0.0)
    dials.succeeded(BOB, PLACE, 1.0)
    dials.succeeded(BOB, PLACE, 2.0)
    assert told == [BOB, BOB]
