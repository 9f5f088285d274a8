"""Who may still bring a model for a round that is over."""

from __future__ import annotations

from pfl_node.protocol.mailbox import LateArrivals
from tests.drive_policy import A, B, C


def test_one_that_was_asked_and_did_not_come_may_come_late_and_nobody_else() -> None:
    overdue = LateArrivals(2)
    overdue.close(5, [A, B], [A], others=False)
    assert [overdue.owes(p, 5) for p in (A, B, C)] == [False, True, False]
    assert not overdue.owes(B, 4)


def test_where_everybody_was_welcome_everybody_who_did_not_come_may() -> None:
    overdue = LateArrivals(1)
    overdue.close(5, [A], [A], others=True)
    assert [overdue.owes(p, 5) for p in (A, C)] == [False, True]


def test_one_that_came_late_cannot_come_again() -> None:
    overdue = LateArrivals(2)
    overdue.close(5, [A], [], others=False)
    overdue.late_used(5, [A])
    overdue.late_used(6, [A])  # a round of which nothing is known
    assert not overdue.owes(A, 5)


def test_rounds_are_forgotten_when_they_are_too_old() -> None:
    overdue = LateArrivals(2)
    for round in (3, 4, 5):
        overdue.close(round, [A], [], others=False)
    overdue.forget(4)
    assert [overdue.owes(A, round) for round in (3, 4, 5)] == [False, True, True]
    assert (3 in overdue, 5 in overdue) == (False, True)


def test_where_nothing_may_be_late_nobody_may() -> None:
    overdue = LateArrivals(0)
    overdue.close(5, [A], [], others=True)
    assert not overdue.owes(A, 5)
