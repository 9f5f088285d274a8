"""Durations and sizes as an operator reads them."""

import pytest

from pfl_node.ops.amounts import size, span


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.1473, "0.147 s"),
        (5, "5 s"),
        (119.6, "120 s"),
        (693, "12 min"),
        (1200, "20 min"),
        (5400, "90 min"),
        (7200, "2 h"),
        (864000, "10 days"),
    ],
)
def test_a_duration_has_the_unit_that_people_use(seconds: float, text: str) -> None:
    assert span(seconds) == text


@pytest.mark.parametrize(("count", "text"), [(12, "12 B"), (1500, "1.5 kB"), (5.54e6, "5.5 MB"), (90e9, "90 GB")])
def test_a_size_has_two_digits(count: float, text: str) -> None:
    assert size(count) == text
