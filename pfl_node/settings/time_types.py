"""Settings that are durations, such as "10m", and hours of the day, such as "20:00-06:00"."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}  # seconds
DURATION = r"^([0-9]+(\.[0-9]+)?[smhd])+$"
HOURS = r"^([01][0-9]|2[0-3]):[0-5][0-9]-(([01][0-9]|2[0-3]):[0-5][0-9]|24:00)$"


def seconds_of(value: Any) -> Any:
    """The seconds of a text such as "90s", "10m" or "1h30m"; a number is a number of seconds."""
    if not isinstance(value, str):
        return value
    if not re.match(DURATION, value):
        raise ValueError("not a duration")
    return sum(float(number) * UNITS[unit] for number, unit in re.findall(r"([0-9.]+)([smhd])", value))


def minutes_of(hours: str) -> tuple[int, int]:
    """The first minute of the day within the hours, and the first one after them."""
    begin, end = (60 * int(time[:2]) + int(time[3:]) for time in hours.split("-"))
    return begin, end


def _not_empty(hours: str) -> str:
    begin, end = minutes_of(hours)
    if begin == end:
        raise ValueError("begins when it ends")
    return hours


Duration = Annotated[
    float,
    BeforeValidator(seconds_of),
    Field(gt=0),
    WithJsonSchema({"words": "a duration such as 90s, 10m or 1h30m, or seconds"}),
]
DayHours = Annotated[
    str,
    Field(pattern=HOURS),
    AfterValidator(_not_empty),
    WithJsonSchema({"words": "hours of the day such as 20:00-06:00"}),
]
