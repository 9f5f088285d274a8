"""How long a call may take."""

from __future__ import annotations

import pytest

from pfl_node.wire.bandwidth import ENOUGH, Bandwidth


def test_before_the_first_transfer_the_guess_counts() -> None:
    assert Bandwidth(1e6).timeout(10, 50_000_000) == 10 + 2 * 50


def test_a_measured_link_sets_the_deadline_and_later_transfers_move_it() -> None:
    link = Bandwidth(1e6)
    link.moved(10_000_000, 1.0)
    assert link.rate == 1e7
    link.moved(20_000_000, 1.0)
    assert link.rate == pytest.approx(1.3e7)
    assert link.timeout(10, 13_000_000) == pytest.approx(12)


def test_a_small_message_says_nothing_about_the_bandwidth() -> None:
    link = Bandwidth(1e6)
    link.moved(ENOUGH - 1, 5.0)
    assert link.rate == 1e6


def test_a_missed_deadline_gives_the_next_call_more_time_up_to_a_limit() -> None:
    link = Bandwidth(1e6)
    link.too_slow()
    assert link.timeout(0, 1_000_000) == 4
    for _ in range(20):
        link.too_slow()
    assert link.timeout(0, 1_000_000) == 32
