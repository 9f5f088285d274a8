"""When the next round may begin, as a function of the clock."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from pfl_node.node.clock import WallClock
from pfl_node.node.round_schedule import next_boundary, opening

BERLIN = WallClock(lambda: 0.0, ZoneInfo("Europe/Berlin"))


def at(text: str, clock: WallClock = BERLIN) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=clock.zone).timestamp()


@pytest.mark.parametrize(
    ("time", "begins"),
    [
        ("2026-11-18T14:03:07", "2026-11-18T14:15:00"),
        ("2026-11-18T14:15:00", "2026-11-18T14:30:00"),
        ("2026-11-18T23:59:59", "2026-11-19T00:00:00"),
    ],
)
def test_rounds_begin_at_the_quarters_of_an_hour(time: str, begins: str) -> None:
    assert next_boundary(900.0, at(time)) == at(begins)


@pytest.mark.parametrize(
    ("hours", "time", "opens"),
    [
        ("20:00-06:00", "2026-11-18T12:00:00", "2026-11-18T20:00:00"),
        ("20:00-06:00", "2026-11-18T20:00:00", "2026-11-18T20:00:00"),
        ("20:00-06:00", "2026-11-19T05:59:59", "2026-11-19T05:59:59"),
        ("20:00-06:00", "2026-11-19T06:00:00", "2026-11-19T20:00:00"),
        ("09:00-17:30", "2026-11-18T17:30:00", "2026-11-19T09:00:00"),
        ("09:00-24:00", "2026-11-18T23:59:00", "2026-11-18T23:59:00"),
        ("00:00-05:00", "2026-11-18T05:00:00", "2026-11-19T00:00:00"),
    ],
)
def test_rounds_begin_in_the_hours_of_the_site(hours: str, time: str, opens: str) -> None:
    assert opening(hours, at(time), BERLIN) == at(opens)


@pytest.mark.parametrize("day", ["2026-03-28", "2026-03-29", "2026-10-24", "2026-10-25"])
def test_the_hours_are_those_of_the_wall_clock_when_summer_time_begins_or_ends(day: str) -> None:
    opens = opening("20:00-06:00", at(f"{day}T07:00:00"), BERLIN)
    assert BERLIN.date(opens).isoformat(timespec="minutes").startswith(f"{day}T20:00")


def test_hours_are_local_time() -> None:
    noon = at("2026-11-18T12:00:00", WallClock(lambda: 0.0, UTC))
    assert opening("12:30-14:00", noon, BERLIN) == noon  # 13:00 in Berlin
