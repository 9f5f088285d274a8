"""How the event loop's time is divided among callers."""

from __future__ import annotations

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from pfl_node.wire.fair_share import TLS_START, FairShare, fair_level


def test_nobody_waits_while_the_load_is_low() -> None:
    fair = FairShare()
    for _ in range(10):
        assert not any(fair.spend("ann", 1.0) for _ in range(1000))
        fair.renew(load=0.1, share=0.2)


def test_under_overload_the_callers_that_spend_most_wait_and_the_others_do_not() -> None:
    fair = FairShare()
    for _ in range(20):
        waiting = {"eve": False, "ann": False}
        for caller, calls in (("eve", 1000), ("ann", 10)):
            for _ in range(calls):
                waiting[caller] = fair.spend(caller, 1.0) or waiting[caller]
        fair.renew(load=0.9, share=0.2)
    assert waiting == {"eve": True, "ann": False}


def test_the_limit_ends_when_the_overload_has_ended() -> None:
    fair = FairShare()
    fair.spend("eve", 100.0)
    fair.renew(load=1.0, share=0.5)
    assert fair.limit == 50.0
    for _ in range(10):
        fair.spend("eve", 10.0)
        fair.renew(load=0.1, share=0.5)
    assert fair.limit == inf


@given(st.lists(st.floats(0.1, 1000), min_size=1, max_size=20), st.floats(0.1, 1000))
def test_all_together_get_the_capacity_and_nobody_more_than_the_level(
    wanted: list[float], capacity: float
) -> None:
    level = fair_level(wanted, capacity)
    given_ = sum(min(amount, level) for amount in wanted)
    assert given_ <= capacity * (1 + 1e-9) or given_ == sum(wanted)
    assert level == inf or given_ >= capacity * (1 - 1e-9)


def test_a_caller_may_begin_something_expensive_until_its_share_is_spent() -> None:
    fair = FairShare()
    fair.spend("a", 100)
    fair.spend("b", 1)
    fair.renew(1.0, 0.1)
    begun = 0
    while not fair.exhausted("a"):
        fair.spend("a", TLS_START)
        begun += 1
    assert 1 <= begun <= 100 / TLS_START
    assert not fair.exhausted("b")
