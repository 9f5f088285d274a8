"""Virtual time."""

from __future__ import annotations

from math import inf

from pfl_node.sim.clock import Clock


def run(clock: Clock) -> None:
    while clock.step():
        pass


def test_what_is_due_first_happens_first_and_ties_keep_the_order_they_were_asked_in() -> None:
    clock, done = Clock(), list[str]()
    clock.at(2.0, lambda: done.append("late"))
    clock.at(1.0, lambda: done.append("first"))
    clock.at(1.0, lambda: done.append("second"))
    run(clock)
    assert done == ["first", "second", "late"]
    assert clock.now == 2.0


def test_time_never_goes_back() -> None:
    clock, seen = Clock(), list[float]()
    clock.at(5.0, lambda: clock.at(1.0, lambda: seen.append(clock.now)))
    run(clock)
    assert seen == [5.0]


def test_what_is_due_at_the_end_of_time_does_not_happen() -> None:
    clock = Clock()
    clock.at(inf, lambda: None)
    assert not clock.step()


def test_an_action_may_ask_for_more() -> None:
    clock, times = Clock(), list[float]()

    def tick() -> None:
        times.append(clock.now)
        if len(times) < 3:
            clock.after(0.5, tick)

    clock.after(0.5, tick)
    run(clock)
    assert times == [0.5, 1.0, 1.5]
