"""The weather: same seed, same fates."""

from __future__ import annotations

import pytest

from tests.netns.link_conditions import Sky, Weather


def fates(seed: int) -> list[float | None]:
    sky = Sky(seed, Weather(delay=0.05, jitter=0.02, loss=0.1))
    return [sky.fate("a", "b") for _ in range(2000)]


def test_the_same_seed_has_the_same_fates() -> None:
    assert fates(1) == fates(1)
    assert fates(1) != fates(2)


def test_as_many_are_lost_and_as_late_as_the_weather_says() -> None:
    found = fates(3)
    late = [f for f in found if f is not None]
    assert 0.07 < 1 - len(late) / len(found) < 0.13
    assert 0.05 <= min(late) < 0.052
    assert 0.068 < max(late) <= 0.07


def test_a_border_is_between_groups_and_concerns_nobody_else() -> None:
    sky = Sky()
    sky.split([{"a", "b"}, {"c"}])
    assert sky.fate("a", "c") is sky.fate("c", "b") is None
    assert sky.fate("a", "b") == sky.fate("a", "x") == sky.fate("x", "c") == 0
    sky.heal()
    assert sky.fate("a", "c") == 0


def test_one_way_can_have_weather_of_its_own() -> None:
    sky = Sky()
    sky.over("a", "b", Weather(delay=1))
    assert (sky.fate("a", "b"), sky.fate("b", "a")) == (1, 0)
    sky.over("a", "b", None)
    assert sky.fate("a", "b") == 0


@pytest.mark.parametrize("wrong", [{"delay": -1}, {"jitter": -0.1}, {"loss": 2}])
def test_no_such_weather(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="no such weather"):
        Weather(**wrong)
