"""Timers by name."""

from __future__ import annotations

from pfl_node.membership.suspendable_clock import SuspendableClock
from pfl_node.membership.timers import Timers


def test_timers_come_in_order_and_only_once() -> None:
    timers = Timers()
    for name, when in (("b", 2.0), ("a", 1.0), ("c", 3.0), ("also b", 2.0)):
        timers.set((name, 0), when)
    assert [name for name, _ in timers.due(2.0)] == ["a", "b", "also b"]
    assert timers.next() == 3.0
    assert len(timers) == 1


def test_a_timer_that_is_set_again_moves_and_a_cancelled_one_does_not_come() -> None:
    timers = Timers()
    timers.set(("a", 0), 1.0)
    timers.set(("a", 0), 5.0)
    timers.set(("b", 0), 2.0)
    timers.cancel(("b", 0))
    assert timers.next() == 5.0
    assert list(timers.due(4.0)) == []
    assert list(timers.due(5.0)) == [("a", 0)]
    assert timers.next() is None


def test_a_timer_set_while_others_fire_comes_in_the_same_round_when_it_is_due() -> None:
    timers = Timers()
    timers.set(("a", 0), 1.0)
    fired = []
    for key in timers.due(2.0):
        fired.append(key)
        if key == ("a", 0):
            timers.set(("b", 0), 1.5)
    assert fired == [("a", 0), ("b", 0)]


def test_moving_timers_about_takes_no_memory() -> None:
    timers = Timers()
    for step in range(10_000):
        timers.set(("a", 0), float(step))
    assert len(timers._heap) < 100


def test_own_time_follows_the_worlds_while_wakeups_are_punctual() -> None:
    own = SuspendableClock(slack=0.25, pause=5.0)
    own.start(100.0)
    own.wake(100.5, due=100.5)
    own.wake(101.1, due=101.0)
    assert own.now == 101.1
    assert own.to_real(103.0) == 103.0


def test_own_time_stands_still_while_the_process_is_stopped() -> None:
    own = SuspendableClock(slack=0.25, pause=5.0)
    own.start(100.0)
    own.wake(103.0, due=101.0)  # two seconds late
    assert own.now == 101.0
    assert own.to_real(102.0) == 104.0
    assert not own.lenient


def test_after_a_long_pause_own_time_is_lenient_for_as_long() -> None:
    own = SuspendableClock(slack=0.25, pause=5.0)
    own.start(100.0)
    own.wake(160.0, due=101.0)
    assert own.lenient
    assert own.pauses == 1
    own.wake(164.9, due=None)
    assert own.lenient
    own.wake(165.1, due=None)
    assert not own.lenient


def test_a_wakeup_at_the_right_moment_is_never_a_bit_too_early() -> None:
    own = SuspendableClock(slack=0.25, pause=5.0)
    own.start(100.0)
    own.wake(160.3, due=101.1)
    for due in (102.1, 103.7, 104.9, 106.1):
        own.wake(own.to_real(due), due=due)
        assert due <= own.now < due + 1e-6
    assert not own.lenient


def test_own_time_never_goes_back() -> None:
    own = SuspendableClock(slack=0.25, pause=5.0)
    own.start(100.0)
    own.wake(101.0, due=None)
    own.wake(99.0, due=None)
    assert own.now == 101.0


def test_a_timer_that_was_set_into_the_past_is_no_sleep() -> None:
    own = SuspendableClock(slack=0.25, pause=5.0)
    own.start(100.0)
    own.wake(110.0, due=None)
    own.wake(110.1, due=103.0)
    assert own.now == 110.1
