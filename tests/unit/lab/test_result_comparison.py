"""Two results side by side."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pfl_node.cli import main
from pfl_node.errors import ConfigError
from pfl_node.lab import spec
from pfl_node.lab.result_comparison import ResultComparison, compare, side
from tests.unit.lab.made_results import made, result, written


def of(found: ResultComparison, run: str, metric: str) -> tuple[float, float, float | None, int]:
    line = next(line for line in found.lines if (line.run, line.metric) == (run, metric))
    return line.a.mean, line.difference.mean, line.difference.half_width, len(line.difference.values)


def test_the_same_cells_are_compared_seed_by_seed(whole: Path, tmp_path: Path) -> None:
    found = compare(side(whole), side(result(tmp_path, better=0.05)))
    _, gap, half, seeds = of(found, "EL", "minority")
    assert seeds == 2
    assert gap == pytest.approx(0.05, abs=0.005)
    assert half is not None
    assert half < 0.05 < of(found, "EL", "minority")[0]  # the seeds' own spread is not in it
    assert [line.run for line in found.lines if line.metric == "accuracy"] == ["Local", "EL", "FACADE"]


def test_a_seed_that_one_of_them_lacks_is_left_out(whole: Path, tmp_path: Path) -> None:
    found = compare(side(whole), side(result(tmp_path, leave_out=("el/seed-0",))))
    assert of(found, "EL", "accuracy")[2:] == (None, 1)
    assert of(found, "Local", "accuracy")[3] == 2


def test_two_runs_of_one_result_can_be_compared_by_label_or_folder(whole: Path) -> None:
    by_label, by_folder = (
        compare(side(whole / a), side(whole / b)) for a, b in (("EL", "FACADE"), ("el", "facade"))
    )
    assert by_label.lines == by_folder.lines
    assert {line.run for line in by_label.lines} == {"EL / FACADE"}
    assert ("policy.name", "el", "facade") in by_label.unlike


def test_one_run_is_compared_with_its_like_in_a_whole_result(whole: Path) -> None:
    assert {line.run for line in compare(side(whole / "EL"), side(whole)).lines} == {"EL"}


def test_results_that_are_the_same_differ_in_nothing(whole: Path) -> None:
    found = compare(side(whole), side(whole))
    assert found.unlike == ()
    assert all(line.difference.mean == 0 for line in found.lines)


def test_what_differs_is_told_settings_versions_and_commit(whole: Path, tmp_path: Path) -> None:
    planned = spec.load(str(written(tmp_path, rounds=10, seeds=3)), sets=["train.batch=4"])
    other = made(tmp_path / "result", planned).path
    for path in other.glob("**/made_with.json"):
        (facts,) = json.loads(path.read_text())["environments"]
        facts |= {"commit": "abc", "packages": {**facts["packages"], "numpy": "1.0"}}
        path.write_text(json.dumps({"environments": [facts]}))
    told = {what: (a, b) for what, a, b in compare(side(whole), side(other)).unlike}
    assert told["commit"][1] == "abc"
    assert told["numpy"][1] == "1.0"
    assert told["seeds"] == ("0, 1", "0, 1, 2")
    assert told["rounds"] == ("20", "10")
    assert told["train.batch"] == ("-", "4")


def test_a_setting_of_one_run_is_told_with_its_run(whole: Path, tmp_path: Path) -> None:
    path = written(tmp_path)
    path.write_text(path.read_text().replace("degree = 3", "degree = 5"))
    other = made(tmp_path / "result", spec.load(str(path))).path
    assert ("EL: policy.degree", "3", "5") in compare(side(whole), side(other)).unlike


def test_results_with_nothing_in_common_are_one_clear_line(whole: Path, tmp_path: Path) -> None:
    path = written(tmp_path)
    text = path.read_text()
    for label in ("Local", "EL", "FACADE"):
        text = text.replace(f'"{label}"', f'"other {label}"')
    path.write_text(text)
    other = made(tmp_path / "result", spec.load(str(path)), leave_out=tuple(_cells(path)))
    with pytest.raises(ConfigError, match="nothing in common: A has Local, EL, FACADE, B has other Local"):
        compare(side(whole), side(other.path))


def _cells(path: Path) -> list[str]:
    return [cell.folder for cell in spec.load(str(path)).cells]


def test_results_at_other_points_have_nothing_in_common(whole: Path, tmp_path: Path) -> None:
    swept = result(tmp_path, sweep='[sweep]\nsetting = "train.lr"\nvalues = [0.1, 0.01]\n')
    with pytest.raises(ConfigError, match="no run has finished at the same point with the same seed"):
        compare(side(whole), side(swept))


def test_a_run_that_is_not_there_is_answered_with_the_nearest(whole: Path) -> None:
    with pytest.raises(ConfigError, match="has no run 'FACADES'; did you mean 'FACADE'"):
        side(whole / "FACADES")


def test_the_verb_prints_both_and_the_difference(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "compare", str(whole / "EL"), str(whole / "facade")]) == 0
    out = capsys.readouterr().out
    assert "B - A" in out
    assert "policy.name" in out


def test_the_verb_speaks_json(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "compare", str(whole), str(whole), "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rows"][0]["difference"] == 0
    assert found["unlike"] == []
