"""Transfers are judged by their progress, and messages fit the line."""

from __future__ import annotations

from pfl_node.wire.transfer_progress import FIRST, SMALLEST, MessageSize, ProgressLimit

MOST = 1 << 20


def test_a_transfer_above_the_lowest_rate_may_take_as_long_as_it_likes() -> None:
    limit = ProgressLimit(30.0, 4e3, now=0.0)
    for second in range(1, 5000):
        assert second <= limit.until
        limit.moved(5000 * second, float(second))


def test_a_transfer_below_the_lowest_rate_ends_however_much_it_moved_before() -> None:
    limit = ProgressLimit(30.0, 4e3, now=0.0)
    limit.moved(100_000_000, 1.0)
    for second in range(2, 31):
        limit.moved(100_000_000 + 3000 * second, float(second))
    assert limit.until == 31.0
    assert limit.failure == "slower than 4000 bytes per second"


def test_a_transfer_that_stands_still_says_so() -> None:
    limit = ProgressLimit(30.0, 4e3, now=0.0)
    assert limit.moved(200_000, 10.0) == 40.0
    assert limit.failure == "no progress for 30 s"


def test_the_messages_of_a_fast_line_grow_and_those_of_a_slow_one_shrink() -> None:
    size = MessageSize(MOST, rate=None)
    assert size.bytes == FIRST
    for _ in range(9):
        size.wrote(0.001)
    assert size.bytes == MOST
    size.wrote(0.5)
    assert size.bytes == MOST
    for _ in range(9):
        size.wrote(3.0)
    assert size.bytes == SMALLEST


def test_the_first_message_on_a_known_line_takes_a_quarter_of_a_second() -> None:
    assert MessageSize(MOST, rate=125e3).bytes == 31_250
    assert MessageSize(MOST, rate=4e3).bytes == SMALLEST
    assert MessageSize(MOST, rate=1e9).bytes == MOST
    assert MessageSize(4096, rate=None).bytes == 4096
