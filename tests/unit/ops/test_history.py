"""The curve of a node: bounded, the newest always there, and read again after a restart."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

from pfl_node.ops.history import History, tail


def walked(rounds: int, points: int = 8) -> History:
    made = History(points)
    for t in range(rounds):
        made.add({"round": t, "val_loss": 1 / (t + 1), "from": ["x"]}, time=float(t))
    return made


def rounds(history: History, after: int = -1) -> list[int]:
    return [p.round for p in history.since(after)]


def test_a_few_rounds_are_all_there() -> None:
    made = walked(5)
    assert rounds(made) == [0, 1, 2, 3, 4]
    assert made.since()[4].plain() == {"round": 4, "time": 4.0, "val_loss": 0.2}


def test_many_rounds_are_as_many_points_evenly_apart_and_the_newest_is_there() -> None:
    for n in range(1, 300):
        found = rounds(walked(n))
        assert len(found) <= 9
        assert found[0] == 0
        assert found[-1] == n - 1
        gaps = {b - a for a, b in pairwise(found[:-1])}
        assert len(gaps) <= 1


def test_one_asks_for_what_is_new() -> None:
    assert rounds(walked(5), after=2) == [3, 4]
    assert rounds(walked(5), after=4) == []
    assert rounds(History()) == []


def test_rounds_that_are_done_again_after_a_restart_replace_the_old_ones() -> None:
    made = walked(6)
    made.add({"round": 3, "val_loss": 9.0}, time=60.0)
    assert rounds(made) == [0, 1, 2, 3]
    assert made.since(2)[0].figures == {"val_loss": 9.0}


def test_a_round_without_figures_is_no_point() -> None:
    made = History()
    bad: list[dict[str, Any]] = [{"round": 1}, {"val_loss": 1.0}, {"round": 1, "val_loss": float("nan")}]
    for row in [*bad, {"round": "1", "val_loss": 0.5}]:
        made.add(row, time=0.0)
    assert rounds(made) == []


def test_the_journal_of_an_earlier_life_is_read_and_damage_left_out(tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    rows = [{"event": "round", "time": 5.0, "round": t, "test_accuracy": 0.5} for t in range(3)]
    lines = [json.dumps(row) for row in [*rows, {"event": "told", "round": 7, "test_accuracy": 1.0, "time": 1}]]
    journal.write_text("\n".join([*lines, '{"event":"round","rou', "[]", "12"]))
    made = History()
    made.read(journal)
    assert rounds(made) == [0, 1, 2]
    made.read(tmp_path / "nothing")


def test_of_a_long_file_only_the_last_whole_lines_are_read(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_text("".join(f"line {n}\n" for n in range(100)))
    assert list(tail(file, 20)) == [b"line 98", b"line 99"]
    assert len(list(tail(file, 10_000))) == 100
