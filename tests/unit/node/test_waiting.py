"""The pending waits in the status of a node."""

from __future__ import annotations

from pfl_node.node.waiting import PendingWaits
from tests.drive_policy import A, B, C


def test_what_is_waited_for_is_seen_while_it_is_waited_for() -> None:
    waits = PendingWaits()
    with waits.on("models", 7) as models, waits.on("Fetch") as fetch:
        models.peers, models.until = [A, B], 110.04
        fetch.peers = {B: 1, C: 1}
        assert waits.peers == (A, B, C)
        assert waits.left(100.0) == 110.04 - 100.0
        assert waits.table(100.0) == [
            {"what": "models", "round": 7, "peers": [A, B], "seconds_left": 10.0},
            {"what": "Fetch", "round": None, "peers": [B, C], "seconds_left": None},
        ]
    assert not waits.peers
    assert waits.left(100.0) is None
    assert not waits.table(100.0)


def test_a_wait_for_nobody_is_none() -> None:
    waits = PendingWaits()
    with waits.on("models", 7) as models:
        models.until = 5.0
        assert (waits.peers, waits.left(0.0), waits.table(0.0)) == ((), None, [])


def test_what_should_be_over_has_no_time_left() -> None:
    waits = PendingWaits()
    with waits.on("models", 7) as models:
        models.peers, models.until = [A], 5.0
        assert waits.left(9.0) == 0.0
        assert waits.table(9.0)[0]["seconds_left"] == 0.0


def test_it_ends_when_the_waiting_fails() -> None:
    waits = PendingWaits()
    try:
        with waits.on("models") as models:
            models.peers = [A]
            raise ValueError
    except ValueError:
        assert waits.peers == ()
