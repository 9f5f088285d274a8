"""What a user of the lab gets wrong beside the spec: data, sizes, folders. One line each, and nothing is lost."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from pfl_node.cli import main
from pfl_node.cli.lab import stop_on_mistake
from pfl_node.errors import ConfigError
from pfl_node.lab import runner, spec
from pfl_node.lab.experiment import Cell
from pfl_node.lab.results_dir import ResultsDir
from pfl_node.plugin import Explanation, explain
from pfl_node.sim import sim_worker
from pfl_node.sim.sim_worker import RunOrder
from tests.unit.lab.made_results import result, written
from tests.unit.learning.tiny_datasets import write_mnist


def failure(cell: Cell, out: Path) -> Explanation:
    """Why a worker cannot run the cell. It must fail before the first round."""
    on_progress: Any = None  # a job that gets as far as a round fails with a TypeError
    with pytest.raises(Exception) as raised:  # noqa: PT011
        sim_worker.run_order(RunOrder(cell.settings, cell.nodes, out=out, segment=5), on_progress)
    return explain(raised.value)


def mistake(capsys: pytest.CaptureFixture[str], *words: str, code: int = 2) -> str:
    """The line on stderr; there is no other."""
    capsys.readouterr()
    assert main(["lab", *words]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err.removeprefix("pfl-node: ").rstrip()


def first_cell(tmp_path: Path, *sets: str) -> Cell:
    return spec.load(str(written(tmp_path)), sets=sets).cells[0]


# -- what shows when a run begins ------------------------------------------------------------------------------

ROOT = "task.root=/nowhere"


@pytest.mark.parametrize(
    ("sets", "why"),
    [
        (("task=cifar10", ROOT), "data set cifar10: no folder /nowhere; set its directory"),
        (("task=mnist", ROOT), "data set mnist: no folder /nowhere; set its directory"),
        (("task=fashion_mnist", ROOT), "data set fashion_mnist: no folder /nowhere; set its directory"),
        (("task=imagenette", "task.root=/etc"), "data set imagenette: no imagenette2-160, imagenette2-320 or"),
        (("task=images", "task.root=/etc"), "data set image_folder: no folder /etc/train (wanted: train/CLASS/"),
        (("task.angles=[0, 45]",), "task.angles: angle 45 is not a multiple of 90"),
        (('task.angles=["up", 0]',), "task.angles = ['up', 0]"),
        (("task.sizes=[3, 4]",), "task.sizes = [3, 4] add up to 7 nodes, but there are 8"),
        (("task.sizes=[8]",), "task.sizes = [8]: 1 sizes for 2 angles"),
        (("task.samples=2000",), "samples"),
    ],
)
def test_a_run_that_cannot_begin_is_a_mistake_in_one_line(tmp_path: Path, sets: tuple[str, ...], why: str) -> None:
    found = failure(first_cell(tmp_path, *sets), tmp_path / "cell")
    assert found.mistake
    assert why in found.line
    assert "\n" not in found.line


def test_more_nodes_than_there_are_samples_is_a_mistake_in_one_line(tmp_path: Path) -> None:
    write_mnist(tmp_path / "MNIST" / "raw", train=6)
    found = failure(first_cell(tmp_path, "task=mnist", f"task.root={tmp_path}"), tmp_path / "cell")
    assert found.mistake
    assert "6 samples are too few for 8 nodes" in found.line


def test_a_full_disk_is_one_line_without_a_traceback() -> None:
    found = explain(OSError(errno.ENOSPC, "No space left on device"))
    assert found == Explanation("cannot write the results: No space left on device")


def test_a_mistake_before_anything_was_learnt_ends_it_all_in_the_words_of_the_lab(tmp_path: Path) -> None:
    heard: list[str] = []
    watch = stop_on_mistake(lambda cell, said: heard.append(said["event"]))
    failed = {
        "event": "failed",
        "mistake": True,
        "why": "no data: --set task.root=DIR or --set task.download=true",
    }
    watch(cell := first_cell(tmp_path), {"event": "progress", "done": 0, "total": 8})
    with pytest.raises(ConfigError, match=r"^Local, seed 0: no data: --data-root DIR or --download$"):
        watch(cell, failed)
    watch(cell, {"event": "progress", "done": 1, "total": 8})
    watch(cell, failed)
    assert heard == ["progress", "progress", "failed"]


# -- folders ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "words", "said"),
    [
        ("other", (), "holds results of experiment mine: choose another directory with --out"),
        ("mine", ("--scale", "paper"), "holds results of --scale quick: choose another directory with --out"),
    ],
)
def test_the_results_of_something_else_are_not_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, words: tuple[str, ...], said: str
) -> None:
    folder = result(tmp_path)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    other = written(tmp_path, name=name, rounds=9)
    assert said in mistake(capsys, "run", str(other), "--out", str(folder), *words)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_spec_without_its_extension_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert mistake(capsys, "run", "mine") == "there is no experiment 'mine'; did you mean 'mine.toml'?"


def test_an_experiment_without_a_run_at_the_scale_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, sweep='[sweep]\nsetting = "task.alpha"\nvalues = [1, 0.1]\nquick = []\n')
    line = mistake(capsys, "run", str(path), "--out", str(tmp_path / "out"))
    assert line == "mine has no run at --scale quick: see `only` and `quick`"
    assert not (tmp_path / "out").exists()


def test_ctrl_c_says_how_to_continue(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "_run_cells", interrupt)
    line = mistake(capsys, "run", str(written(tmp_path)), "--out", str(tmp_path / "out"), code=130)
    assert line == "interrupted: the same command continues"


def test_a_mistyped_setting_leaves_the_results_as_they_were(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = result(tmp_path)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    def refuse(cells: Any, *_: Any) -> None:
        assert not any((folder / cell.folder / "summary.json").exists() for cell in cells)
        raise ConfigError("task.samples = 'many' is not a whole number from 1 on")

    monkeypatch.setattr(runner, "_run_cells", refuse)
    line = mistake(capsys, "run", str(tmp_path / "mine.toml"), "--out", str(folder), "--set", "task.samples=many")
    assert line.startswith("task.samples = 'many'")
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_results_are_replaced_once_a_run_has_begun(tmp_path: Path) -> None:
    folder = ResultsDir(result(tmp_path))
    experiment = spec.load(str(tmp_path / "mine.toml"), sets=["train.lr=0.5"])
    folder.prepare(experiment)
    for cell in experiment.cells:
        folder.begin(cell)
    (folder.place(experiment.cells[0]) / "segments" / "000005").mkdir(parents=True)
    folder.replaced.stopped()
    assert not list(folder.path.rglob("summary.json"))
    assert not (folder.path / ".replaced").exists()


@pytest.mark.parametrize("theirs", ["spec.toml", "plots/mine.png", "el/notes.txt"])
def test_files_of_the_user_are_not_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], theirs: str
) -> None:
    (file := tmp_path / theirs).parent.mkdir(exist_ok=True)
    file.write_text("mine")
    line = mistake(capsys, "run", str(written(tmp_path)), "--out", str(tmp_path))
    has = Path(theirs).parts[0]
    assert line == (
        f"{tmp_path} is not a results directory of `pfl-node lab run`, but has {has}: "
        "choose another directory with --out"
    )
    assert file.read_text() == "mine"
    assert not (tmp_path / "environment.json").exists()


@pytest.mark.parametrize("out", ["file", "file/below", "/proc/nothing"])
def test_a_place_that_cannot_be_written_to_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, out: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    assert mistake(capsys, "run", str(written(tmp_path)), "--out", out, code=1).startswith(
        f"cannot create {out}: "
    )
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("verb", ["report", "compare"])
@pytest.mark.parametrize("where", ["empty", "gone"])
def test_a_folder_without_a_result_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str, where: str
) -> None:
    (tmp_path / "empty").mkdir()
    folders = [str(tmp_path / where)] * (2 if verb == "compare" else 1)
    line = mistake(capsys, verb, *folders)
    assert line == f"{tmp_path / where} is not a results directory of `pfl-node lab run`: it has no spec.toml"


def test_a_damaged_file_is_named_with_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = result(tmp_path)
    (folder / "el" / "seed-0" / "summary.json").write_text('{"accuracy": 0.')
    line = mistake(capsys, "report", str(folder), code=1)
    assert line.startswith(f"{folder / 'el' / 'seed-0'} is damaged (")
    assert line.endswith("): delete it and run the experiment again")


@pytest.mark.parametrize("verb", ["report", "export", "record"])
@pytest.mark.parametrize(
    ("file", "text", "why"),
    [
        ("summary.json", "[]", "not a JSON object: '[]'"),
        ("summary.json", "{}", "no 'per_node'"),
        ("journal.jsonl", '{"event": "rou', "Unterminated string"),
        ("journal.jsonl", "5\n", "not a JSON object: '5"),
        ("journal.jsonl", '{"event": "round"}\n', "no 'round'"),
    ],
)
def test_a_file_with_other_contents_is_damaged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str, file: str, text: str, why: str
) -> None:
    folder = result(tmp_path)
    (folder / "el" / "seed-0" / file).write_text(text)
    more = {"export": ("--to", str(tmp_path)), "record": ("--records", str(tmp_path / "records"))}
    line = mistake(capsys, verb, str(folder), *more.get(verb, ()), code=1)
    assert line.startswith(f"{folder / 'el' / 'seed-0'} is damaged ({why}")


@pytest.mark.parametrize(("file", "text"), [("settings.json", "{}"), ("made_with.json", "[]")])
def test_damaged_facts_of_a_run_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, text: str
) -> None:
    place = (folder := result(tmp_path)) / "el" / "seed-0"
    (place / file).write_text(text)
    line = mistake(capsys, "report", str(folder))
    assert line == f"{place / file} is damaged: delete {place} and run the experiment again"


def test_a_damaged_spec_is_named_with_its_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = result(tmp_path)
    (folder / "spec.toml").write_text("title = ")
    assert mistake(capsys, "report", str(folder)).startswith(
        f"cannot read {folder / 'spec.toml'}: experiment mine"
    )


@pytest.mark.parametrize("facts", [{"node": 1}, {"name": "mine", "scale": "big", "seeds": [0]}, {"seeds": 3}])
def test_an_environment_of_something_else_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], facts: dict[str, Any]
) -> None:
    folder = result(tmp_path)
    (folder / "environment.json").write_text(json.dumps(facts))
    assert mistake(capsys, "report", str(folder)).endswith("its environment.json has other contents")


def test_a_run_that_a_result_does_not_have_names_the_nearest(
    whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = mistake(capsys, "compare", str(whole / "Facad"), str(whole / "EL"))
    assert line == f"{whole} has no run 'Facad'; did you mean 'FACADE'?"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("run", "facade-cifar10-30-3"),
            "there is no experiment 'facade-cifar10-30-3'; did you mean 'facade-cifar10-",
        ),
        (("show", "pens-cifar"), "there is no experiment 'pens-cifar'; did you mean 'pens-cifar10"),
        (("run", "mine"), "there is no experiment 'mine'; `pfl-node lab list` has all, or give a FILE.toml"),
        (("run", "gone.toml"), "cannot read gone.toml: No such file or directory"),
        (("run", "digits-clusters", "--scale", "big"), "'big' is not one of 'quick', 'paper'"),
        (
            ("run", "digits-clusters", "--seeds", "0"),
            "invalid value for '--seeds': it should be greater than or equal to 1",
        ),
        (
            ("run", "digits-clusters", "--data-root", "x"),
            "experiment digits-clusters: it uses no data set: omit --data-root",
        ),
        (("rnu", "digits-clusters"), "no such verb 'rnu': did you mean 'run'?"),
    ],
)
def test_a_mistyped_command_is_one_line(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    assert said in mistake(capsys, *words)
