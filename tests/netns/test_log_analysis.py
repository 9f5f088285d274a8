"""What is concluded from logs and times."""

from __future__ import annotations

import json
from math import inf

import pytest

from tests.netns.log_analysis import Life, Round, Said, complete_at, deaths, noticed, read, rounds, views
from tests.netns.netns_lab import netem_words


def said(*rows: tuple[float, str, str, str]) -> list[Said]:
    return [Said(*row) for row in rows]


def test_lines_of_a_log_are_read_and_others_passed_over() -> None:
    rows = [
        {"timestamp": "1970-01-01T00:00:05Z", "event": "died", "address": "10.77.0.2:7946"},
        {"timestamp": "1970-01-01T00:00:06Z", "event": "round", "address": "10.77.0.2:7946"},
    ]
    lines = [*map(json.dumps, rows), 'torn {"address"', "words", json.dumps(rows[0])[:-9]]
    assert read("me", lines) == [Said(5.0, "me", "died", "10.77.0.2")]


def test_a_death_is_true_late_or_false() -> None:
    lives = {"a": [Life(0, 100), Life(103)], "b": [Life(0)]}
    story = said(
        (1, "b", "joined", "a"),
        (1, "a", "joined", "b"),
        (108, "b", "died", "a"),  # not back yet
        (109, "b", "joined", "a"),
        (112, "c", "died", "a"),  # of the life before
        (150, "c", "died", "a"),
        (151, "a", "died", "b"),
    )
    found = deaths(story, lives)
    assert (found.true, found.late) == (1, 1)
    assert [(row.time, row.about) for row in found.false] == [(150, "a"), (151, "b")]


def test_a_death_before_the_first_kill_is_false_however_early() -> None:
    story = said((1, "b", "joined", "a"), (2, "b", "died", "a"))
    assert len(deaths(story, {"a": [Life(0)]}).false) == 1


def test_who_noticed_a_death_and_when() -> None:
    story = said((9, "b", "died", "a"), (12, "b", "died", "a"), (15, "c", "died", "a"), (16, "b", "died", "x"))
    assert noticed(story, "a", 10, ["b", "c", "d"]) == {"b": 2, "c": 5, "d": inf}


def test_views_are_complete_when_everybody_has_everybody_for_good() -> None:
    story = said((1, "a", "joined", "b"), (4, "b", "joined", "a"))
    assert complete_at(story, ["a", "b"], since=1) == 3
    lost = [*story, *said((6, "a", "died", "b"))]
    assert complete_at(lost, ["a", "b"], since=1) == inf
    again = [*lost, *said((9, "a", "joined", "b"))]
    assert complete_at(again, ["a", "b"], since=1) == 8
    assert complete_at([*lost, *said((8, "a", "suspected", "b"))], ["a", "b"], since=1) == 7
    assert complete_at(story, ["a", "b"], since=100) == 0
    assert views(lost, until=5) == {"a": {"b"}, "b": {"a"}}
    assert views(lost) == {"a": set(), "b": {"a"}}


def test_rounds_of_a_journal_are_counted_from_the_start_of_their_life() -> None:
    lines = [
        {"event": "started", "time": 10},
        {"event": "round", "time": 12, "round": 0, "learning_seconds": 0.5, "test_accuracy": 0.5},
        {"event": "round", "time": 15, "round": 1, "learning_seconds": 1.5},
        {"event": "started", "time": 30},
        {"event": "round", "time": 31, "round": 1, "learning_seconds": 0.25},
    ]
    found = rounds([*map(json.dumps, lines), '{"event": "rou'])
    assert found == [Round(0, 12, 2, 0.5, 0.5), Round(1, 15, 3, 1.0, None), Round(1, 31, 1, 0.25, None)]


@pytest.mark.parametrize(
    ("weather", "words"),
    [
        ((0.05, 0, 0.02), "netem limit 20000 delay 50ms loss 2%"),
        ((0.05, 0.02, 0), "netem limit 20000 delay 60ms 10ms"),
        ((0, 0, 0), "netem limit 20000"),
    ],
)
def test_the_same_weather_for_the_kernel(weather: tuple[float, float, float], words: str) -> None:
    assert " ".join(netem_words(*weather)) == words
