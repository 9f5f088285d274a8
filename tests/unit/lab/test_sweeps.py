"""`--sweep KEY=VALUE,VALUE`: a grid of points, the paper's figures at their place, and a result that knows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pfl_node.errors import ConfigError
from pfl_node.lab import spec
from pfl_node.lab.report.result import reopen
from pfl_node.lab.report.write import write
from pfl_node.lab.results_dir import ResultsDir
from pfl_node.lab.sweeps import Combination, combinations, parse
from tests.unit.lab.made_results import made, written

SWEEP = '\n[sweep]\nsetting = "task.alpha"\nvalues = [10, 0.1]\nlabel = "alpha = {}"\n'


def test_values_are_separated_by_commas_outside_brackets_and_quotes() -> None:
    assert parse("train.lr=0.01, 0.1") == ("train.lr", ["0.01", "0.1"])
    assert parse("task.angles=[0,180],[0,90]") == ("task.angles", ["[0,180]", "[0,90]"])
    assert parse('task.model="a,b",c') == ("task.model", ['"a,b"', "c"])


@pytest.mark.parametrize(
    "text", ["train.lr", "train.lr=", "train.lr=1", "=1,2", "a=1,,2", "a=1,2,", "a=,1", "a=[1,2"]
)
def test_a_sweep_that_is_none_is_one_line(text: str) -> None:
    with pytest.raises(ConfigError, match="it should be KEY=VALUE,VALUE"):
        parse(text)


def test_two_sweeps_are_a_grid() -> None:
    found = combinations(["train.lr=1,2", "nodes=4,8"])
    assert [(c.label, c.sets, c.nodes) for c in found] == [
        ("train.lr = 1, nodes = 4", ("train.lr=1",), 4),
        ("train.lr = 1, nodes = 8", ("train.lr=1",), 8),
        ("train.lr = 2, nodes = 4", ("train.lr=2",), 4),
        ("train.lr = 2, nodes = 8", ("train.lr=2",), 8),
    ]
    assert combinations([]) == [Combination()]


def test_all_runs_are_repeated_with_each_value_and_seed(tmp_path: Path) -> None:
    found = spec.load(str(written(tmp_path)), sweeps=["train.lr=0.01,0.1"])
    assert found.points == ("train.lr = 0.01", "train.lr = 0.1")
    assert len(found.cells) == 3 * 2 * 2
    cell = found.cells[-1]
    assert (cell.run, cell.seed, cell.settings.train.lr) == ("FACADE", 1, 0.1)
    assert cell.folder == "facade/train.lr-0.1/seed-1"


def test_the_points_of_the_spec_stay(tmp_path: Path) -> None:
    found = spec.load(str(written(tmp_path, sweep=SWEEP)), sweeps=["nodes=4,8"])
    assert found.points == tuple(f"alpha = {a}, nodes = {n}" for a in ("10", "0.1") for n in (4, 8))
    assert {(cell.settings.task.options["alpha"], cell.nodes) for cell in found.cells} == {
        (10, 4),
        (10, 8),
        (0.1, 4),
        (0.1, 8),
    }


def test_the_papers_figures_belong_to_the_values_of_the_spec(tmp_path: Path) -> None:
    """FACADE's learning rate is 0.01 in the spec; that of the others is the default, 0.1 or not."""
    found = spec.load(str(written(tmp_path)), sweeps=["train.lr=0.01,0.5"])
    assert {(f.run, f.point) for f in found.figures} == {("FACADE", "train.lr = 0.01")}


def test_claims_are_judged_at_every_point(tmp_path: Path) -> None:
    folder = made(tmp_path / "result", spec.load(str(written(tmp_path)), sweeps=["train.lr=0.01,0.5"]))
    verdicts = list(reopen(folder.path).results.verdicts())
    assert [v.point for v in verdicts] == ["train.lr = 0.01", "train.lr = 0.5"] * 2


@pytest.mark.parametrize(
    ("sweeps", "sets", "says"),
    [
        (["seed=1,2"], [], "--sweep seed: set the number of seeds with --seeds N"),
        (["policy=el,dac"], [], "--sweep policy.name: the experiment itself varies it"),
        (["train.lr=1,2", "train.lr=3,4"], [], "two --sweep train.lr"),
        (["train.lr=1,1"], [], "1 is there twice"),
        (["train.lr=1,2"], ["train.lr=3"], "contradict each other"),
        (["train.lr=0.1,0.10"], [], "0.1 is there twice"),
        (["seeds=1,2"], [], "--sweep seed: set the number of seeds with --seeds N"),
        (["train.rl=1,2"], [], "unknown setting 'train.rl' in --sweep: did you mean 'train.lr'?"),
        (["train.lr=1,x"], [], "bad value 'x' for 'train.lr' in --sweep"),
        (["train.lr=1,2"], ["train.batch=x"], "bad value 'x' for 'train.batch' in --set"),
        (["train=1,2"], [], "'train' in --sweep is a section"),
        (["task.alpha=1,-1"], [], "'task.alpha = 1' and 'task.alpha = -1' would have the same directory"),
        (
            ["policy.degree=2,3"],
            [],
            "policy.degree is not a knob of Local: known: patience, window (--sweep applies to all runs)",
        ),
        (["nodes=4,0"], [], "0 is not a positive integer"),
    ],
)
def test_a_mistake_in_a_sweep_is_one_line(tmp_path: Path, sweeps: list[str], sets: list[str], says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        spec.load(str(written(tmp_path)), sweeps=sweeps, sets=sets)
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_point_of_the_spec_cannot_be_swept(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the experiment itself varies it"):
        spec.load(str(written(tmp_path, sweep=SWEEP)), sweeps=["task.alpha=1,2"])


def test_a_result_tells_its_sweep_and_is_not_mixed_with_another(tmp_path: Path) -> None:
    path = str(written(tmp_path, plots='["accuracy"]'))  # a sweep is always drawn
    swept = spec.load(path, sweeps=["train.lr=0.01,0.5"])
    folder = made(tmp_path / "result", swept)
    record = reopen(folder.path)
    assert record.experiment.points == swept.points
    assert "--sweep train.lr=0.01,0.5" in record.command
    write(record)
    assert (folder.path / "plots" / "sweep-accuracy.svg").exists()
    assert "train.lr = 0.5" in (folder.path / "table.md").read_text()
    with pytest.raises(ConfigError, match=r"holds results of --sweep train\.lr"):
        ResultsDir(folder.path).prepare(spec.load(path))
    ResultsDir(folder.path).prepare(spec.load(path, sweeps=["train.lr=0.01,0.5,1"]))
