"""An experiment's file: what it means at a scale, what wins over it, and what is said of mistakes in it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from pfl_node.errors import ConfigError
from pfl_node.lab.experiment import Experiment, PaperFigure, Scale
from pfl_node.lab.report.plots import PLOTS
from pfl_node.lab.spec import load, read, shipped

BASE = """
title = "Two rows"
paper = "Somebody 2024, table 1"
about = "Made for a test."
clusters = ["upright", "upside down"]
metrics = ["accuracy", "minority"]
plots = ["accuracy"]
target = 0.9

[settings]
task = { name = "digits" }
train = { lr = 0.1, batch = 8 }

[paper_scale]
nodes = 20
rounds = 100
seeds = 3
settings = { eval = { every = 10 } }

[quick_scale]
nodes = 6
rounds = 10
settings = { eval = { every = 5 }, train = { lr = 0.2 } }
"""
ROWS = """
[[run]]
label = "EL"
settings = { policy = { name = "el", degree = 3 } }
figures = { accuracy = 70, minority = 40 }

[[run]]
label = "FACADE"
settings = { policy = { name = "facade" }, train = { lr = 0.01 } }
paper = { rounds = 120 }
quick = { policy = { warmup = 2 } }
figures = { accuracy = 72.5 }

[[claim]]
metric = "minority"
higher = "FACADE"
lower = "EL"
by = 10
"""
SWEEP = """
[sweep]
setting = "task.auxiliary"
values = [0.1, 0.2, 0.3]
label = "share {}"
quick = [0.3]
"""
SWEPT = """
[[run]]
label = "Local"
settings = { policy = "local" }
figures = { accuracy = [10, "-", 30] }
"""


def made(at: Path, text: str, scale: Scale = "quick", **more: object) -> Experiment:
    file = at / "mine.toml"
    file.write_text(text)
    return load(str(file), scale, **more)  # type: ignore[arg-type]


def test_a_scale_says_how_many_nodes_rounds_and_seeds(tmp_path: Path) -> None:
    quick, paper = made(tmp_path, BASE + ROWS), made(tmp_path, BASE + ROWS, "paper")
    assert (quick.name, quick.runs, quick.seeds) == ("mine", ("EL", "FACADE"), (0,))
    assert [(c.nodes, c.settings.rounds) for c in quick.cells] == [(6, 10), (6, 10)]
    assert paper.seeds == (0, 1, 2)
    assert {(c.run, c.nodes, c.settings.rounds) for c in paper.cells} == {("EL", 20, 100), ("FACADE", 20, 120)}
    assert [c.folder for c in quick.cells] == ["el/seed-0", "facade/seed-0"]


def test_the_special_wins_over_the_general(tmp_path: Path) -> None:
    el, facade = made(tmp_path, BASE + ROWS).cells
    assert (el.settings.train.lr, facade.settings.train.lr) == (0.2, 0.01)
    assert el.settings.train.batch == facade.settings.train.batch == 8
    assert facade.settings.policy.options == {"warmup": 2}
    (facade,) = (c for c in made(tmp_path, BASE + ROWS, "paper", seeds=1).cells if c.run == "FACADE")
    assert facade.settings.policy.options == {}


def test_a_row_may_have_nodes_of_its_own(tmp_path: Path) -> None:
    text = BASE + ROWS.replace("quick = {", "quick = { nodes = 2, rounds = 4,")
    assert [(c.nodes, c.settings.rounds) for c in made(tmp_path, text).cells] == [(6, 10), (2, 4)]


def test_figures_and_claims_are_in_our_unit(tmp_path: Path) -> None:
    found = made(tmp_path, BASE + ROWS)
    assert found.figures[0] == PaperFigure("EL", "", "accuracy", 0.7)
    assert found.claims[0].by == pytest.approx(0.1)


@pytest.mark.parametrize("plot", PLOTS)
def test_every_plot_there_is_can_be_asked_for(plot: str, tmp_path: Path) -> None:
    assert made(tmp_path, BASE.replace('["accuracy"]', f'["{plot}"]', 1) + ROWS).plots == (plot,)


def test_experiments_are_listed_without_loading_what_draws_or_learns() -> None:
    code = "import sys\nfrom pfl_node.lab import spec\n"
    code += "print(len([spec.parse(*spec.read(name)) for name in spec.shipped()]))\n"
    code += "print(*sorted({'torch', 'matplotlib'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(len(shipped()))]


def test_a_sweep_runs_each_row_at_each_of_its_values(tmp_path: Path) -> None:
    paper = made(tmp_path, BASE + SWEEP + SWEPT, "paper", seeds=1)
    assert paper.points == ("share 0.1", "share 0.2", "share 0.3")
    assert [c.settings.task.options["auxiliary"] for c in paper.cells] == [0.1, 0.2, 0.3]
    assert paper.cells[0].folder == "local/share-0.1/seed-0"
    assert [(f.point, f.value) for f in paper.figures] == [("share 0.1", 0.1), ("share 0.3", 0.3)]


def test_at_the_quick_scale_a_sweep_may_have_fewer_values_and_keeps_their_figures(tmp_path: Path) -> None:
    quick = made(tmp_path, BASE + SWEEP + SWEPT)
    assert quick.points == ("share 0.3",)
    assert [(f.point, f.value) for f in quick.figures] == [("share 0.3", 0.3)]


def test_points_may_differ_in_several_settings_and_in_nodes(tmp_path: Path) -> None:
    points = """
[[point]]
label = "few"
settings = { nodes = 4, train = { batch = 2 } }
quick = { nodes = 2 }

[[point]]
label = "many"
only = "paper"
settings = { nodes = 50 }
"""
    row = SWEPT.replace('[10, "-", 30]', "[10, 20]")
    paper, quick = made(tmp_path, BASE + points + row, "paper", seeds=1), made(tmp_path, BASE + points + row)
    assert [(c.point, c.nodes, c.settings.train.batch) for c in paper.cells] == [("few", 4, 2), ("many", 50, 8)]
    assert [(c.point, c.nodes, c.settings.train.batch) for c in quick.cells] == [("few", 2, 2)]


def test_points_may_have_different_data_and_each_gets_the_data_root_that_its_task_takes(tmp_path: Path) -> None:
    points = """
[[point]]
label = "embedded"
settings = { task = "digits" }

[[point]]
label = "files"
settings = { task = "mnist" }
"""
    row = SWEPT.replace('[10, "-", 30]', "[10, 20]")
    embedded, files = made(tmp_path, BASE + points + row, seeds=1, data=['task.root="/data"']).cells
    assert embedded.settings.task.options == {}
    assert files.settings.task.options == {"root": "/data"}


POINTS_OF_A_RUN = """
[[point]]
label = "few"
settings = { train = { batch = 2 } }

[[point]]
label = "many"

[[run]]
label = "Local"
settings = { policy = "local" }
paper = { train = { batch = 4 } }
at_point = { few = { train = { batch = 1 }, nodes = 3 } }

[[run]]
label = "EL"
settings = { policy = "el" }
"""


def test_a_run_may_have_settings_of_its_own_at_a_point(tmp_path: Path) -> None:
    cells = made(tmp_path, BASE + POINTS_OF_A_RUN, "paper", seeds=1).cells
    found = [(c.run, c.point, c.nodes, c.settings.train.batch) for c in cells]
    assert found == [("Local", "few", 3, 1), ("Local", "many", 20, 4), ("EL", "few", 20, 2), ("EL", "many", 20, 8)]


def test_settings_of_a_run_at_a_point_need_a_point_and_are_not_overridden(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no point 'fw'; did you mean 'few'"):
        made(tmp_path, BASE + POINTS_OF_A_RUN.replace("at_point = { few", "at_point = { fw"))
    with pytest.raises(ConfigError, match=re.escape("--set train.batch would make different runs equal")):
        made(tmp_path, BASE + POINTS_OF_A_RUN, sets=("train.batch=3",))


def test_what_is_run_at_one_scale_only_has_no_figures_and_claims_at_the_other(tmp_path: Path) -> None:
    text = BASE + ROWS.replace('label = "FACADE"\n', 'label = "FACADE"\nonly = "paper"\n', 1)
    quick = made(tmp_path, text)
    assert quick.runs == ("EL",)
    assert {f.run for f in quick.figures} == {"EL"}
    assert quick.claims == ()
    assert len(made(tmp_path, text, "paper").claims) == 1


def test_a_claim_may_be_made_of_one_scale_only(tmp_path: Path) -> None:
    text = BASE + ROWS + 'only = "paper"\n'
    assert made(tmp_path, text).claims == ()
    assert len(made(tmp_path, text, "paper").claims) == 1


def test_a_scale_may_have_a_target_of_its_own(tmp_path: Path) -> None:
    text = BASE.replace("nodes = 6", "nodes = 6\ntarget = 0.5") + ROWS
    assert made(tmp_path, text).target == 0.5
    assert made(tmp_path, text, "paper").target == 0.9


def test_the_rounds_of_the_command_line_win_over_everything(tmp_path: Path) -> None:
    wishes = ("task.auxiliary=0.5", "rounds=7", "train.lr=0.4")
    for scale in ("quick", "paper"):
        cells = made(tmp_path, BASE + ROWS, scale, sets=wishes).cells
        assert {(c.settings.rounds, c.settings.train.lr) for c in cells} == {(7, 0.4)}
        assert {c.settings.task.options["auxiliary"] for c in cells} == {0.5}


def test_seeds_are_the_first_numbers_and_the_cells_differ_in_nothing_else(tmp_path: Path) -> None:
    one, two = (c for c in made(tmp_path, BASE + ROWS, seeds=2).cells if c.run == "EL")
    assert (one.settings.seed, two.settings.seed) == (0, 1)
    assert one.settings.model_copy(update={"seed": 1}) == two.settings


# -- mistakes --------------------------------------------------------------------------------------------------

MISTAKES = [
    (
        ('title = "Two rows"', 'titel = "Two rows"'),
        "experiment mine: titel is not a valid key; did you mean 'title'?",
    ),
    (("rounds = 10\n", "round = 10\n"), "quick_scale.round is not a valid key; did you mean 'rounds'?"),
    (("rounds = 10\n", ""), "quick_scale.rounds: field required"),
    (('label = "EL"', 'label = "EL"\nfigurs = {}'), "run 1: figurs is not a valid key; did you mean 'figures'?"),
    (("by = 10", "bye = 10"), "claim 1: bye is not a valid key; did you mean 'by'?"),
    (('lower = "EL"', 'lower = "El"'), "there is no run 'El'; did you mean 'EL'?"),
    (('"accuracy", "minority"]', '"acuracy"]'), "there is no metric 'acuracy'; did you mean 'accuracy'?"),
    (("{ accuracy = 70,", "{ accurcy = 70,"), "there is no metric 'accurcy'; did you mean 'accuracy'?"),
    (('plots = ["accuracy"]', 'plots = ["acuracy"]'), "there is no plot 'acuracy'; did you mean 'accuracy'?"),
    (("accuracy = 70", "accuracy = [70, 71]"), "EL: 2 figures of accuracy, but the paper has 1 points"),
    (('label = "FACADE"', 'label = "el"'), "two runs have the same label: 'EL' and 'el'"),
    (('label = "FACADE"', 'label = "…"'), "the label '…' has no letter or digit"),
    (("lr = 0.1,", "lrr = 0.1,"), "EL: unknown setting 'train.lrr': did you mean 'train.lr'?"),
    (("lr = 0.1,", "lr = 0.1, batch = 0,"), "mine is not valid TOML"),
    (("batch = 8", "batch = 0"), "EL: bad value 0 for 'train.batch': must be a whole number above 0"),
    (("task = {", "tsk = {"), "EL: unknown setting 'tsk': did you mean 'task'?"),
    (("degree = 3", "degre = 3"), "EL: policy.degre is not a knob of El: did you mean 'degree'?"),
    (('"facade"', '"facad"'), "FACADE: unknown policy 'facad': did you mean 'facade'?"),
    (('"digits"', '"digits", angels = [0]'), "EL: task digits has no option 'angels'; did you mean 'angles'?"),
    (("nodes = 6", "nodes = 0"), "quick_scale.nodes: input should be greater than 0"),
    (("quick = {", "quick = { nodes = -1,"), "FACADE: nodes = -1 is not a positive integer"),
    (("by = 10", 'by = 10\nonly = "fast"'), "claim 1: only: input should be 'quick' or 'paper'"),
    (("rounds = 10\n", 'rounds = "10"\n'), "quick_scale.rounds: input should be a valid integer"),
    (("seeds = 3", "seeds = true"), "paper_scale.seeds: input should be a valid integer"),
    (
        ('settings = { policy = { name = "el", degree = 3 } }', "settings = { train = 3 }"),
        "EL: 'train' is a section",
    ),
    (("train = {", "seed = 3\ntrain = {"), "EL: seeds are 0, 1, …: set their number with seeds = N instead"),
    (('label = "FACADE"', 'lable = "FACADE"'), "run 2: lable is not a valid key; did you mean 'label'?"),
    (("[[claim]]", "[claim]"), "claim: write [[claim]], with two brackets"),
    (
        ('{ policy = { name = "facade" }, train = { lr = 0.01 } }', '"facade"'),
        "run 2: settings: it should be a table",
    ),
    (("by = 10", 'by = "10"'), "claim 1: by: input should be a valid number"),
    (('lower = "EL"', 'lower = "FACADE"'), "a claim compares 'FACADE' with itself"),
    (("by = 10", 'point = "x"'), "a claim has the point 'x', but the spec has no points"),
    (('"accuracy", "minority"]', '"minority", "minority"]'), "metrics has 'minority' twice"),
    (('label = "EL"', 'label = ""'), "a run has the empty label ''"),
    (('"minority"]', '"speed_up"]'), "the metric 'speed_up' needs the baseline of a run"),
]


def test_a_measure_of_the_target_needs_one(tmp_path: Path) -> None:
    text = (BASE + ROWS).replace('"minority"]', '"rounds_to_target"]')
    assert made(tmp_path, text).metrics[-1] == "rounds_to_target"
    with pytest.raises(ConfigError, match=r"'rounds_to_target' needs a target, such as target = 0\.8"):
        made(tmp_path, text.replace("target = 0.9\n", ""))


def test_a_claim_about_a_point_that_does_not_exist_names_the_points(tmp_path: Path) -> None:
    text = BASE + SWEEP + SWEPT + SWEPT.replace("Local", "Other")
    claim = '[[claim]]\nmetric = "accuracy"\nhigher = "Local"\nlower = "Other"\npoint = "share 0.4"\n'
    with pytest.raises(ConfigError, match=r"there is no point 'share 0\.4'; known: share 0\.1, share 0\.2"):
        made(tmp_path, text + claim)


@pytest.mark.parametrize(("change", "said"), MISTAKES, ids=[said for _, said in MISTAKES])
def test_a_mistake_is_one_line_that_says_where_it_is(change: tuple[str, str], said: str, tmp_path: Path) -> None:
    text = (BASE + ROWS).replace(*change, 1)
    assert text != BASE + ROWS
    with pytest.raises(ConfigError, match=re.escape(said)) as caught:
        made(tmp_path, text)
    assert str(caught.value).startswith("experiment mine")
    assert "\n" not in str(caught.value)
    assert "--" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("[0.3]", "[0.4]"), "sweep.quick: 0.4 is not one of the values [0.1, 0.2, 0.3]"),
        (("share {}", "share"), "sweep.label = 'share' has no {} for the value"),
        (('[10, "-", 30]', "[10, 30]"), "Local: 2 figures of accuracy, but the paper has 3 points"),
        (('[10, "-", 30]', '[10, "?", 30]'), "run 1: figures.accuracy"),
        (("[sweep]", '[[point]]\nlabel = "a"\n[sweep]'), "it has both a sweep and points: use one of them"),
        (("0.2, 0.3]", "0.1, 0.3]"), "two points have the same label: 'share 0.1' and 'share 0.1'"),
        (("task.auxiliary", "task.auxilary"), "Local: task digits has no option 'auxilary'"),
    ],
)
def test_a_mistake_in_a_sweep_is_one_line(change: tuple[str, str], said: str, tmp_path: Path) -> None:
    text = (BASE + SWEEP + SWEPT).replace(*change, 1)
    assert text != BASE + SWEEP + SWEPT
    with pytest.raises(ConfigError, match=re.escape(said)) as caught:
        made(tmp_path, text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        ("seed=3", "--set seed would make all seeds equal: set their number with --seeds N"),
        ("policy=el", "--set policy.name would make different runs equal: write a FILE.toml"),
        ("task.auxiliary=0.2", "--set task.auxiliary would make different runs equal"),
        ("nodes=3", "--set nodes: it is a key of the spec, not a setting: write a FILE.toml"),
        ("train.lrr=3", "Local: unknown setting 'train.lrr' in --set: did you mean 'train.lr'?"),
        ("rounds=many", "Local: bad value 'many' for 'rounds' in --set: must be a whole number above 0"),
        ("policy.k=3", "Local: policy.k is not a knob of Local"),
    ],
)
def test_a_wish_for_all_runs_must_be_one_that_all_can_have(wish: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        made(tmp_path, BASE + SWEEP + SWEPT, sets=(wish,))


def test_an_experiment_that_is_not_there_names_the_nearest_one() -> None:
    name = next(n for n in shipped() if n.startswith("facade"))
    with pytest.raises(ConfigError, match=f"there is no experiment '{name}x'; did you mean '{name}'"):
        read(f"{name}x")


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*gone.toml: No such file or directory"):
        read(str(tmp_path / "gone.toml"))
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"cannot read .*bytes.toml"):
        read(str(tmp_path / "bytes.toml"))


def test_only_some_runs_and_points_are_selected(tmp_path: Path) -> None:
    experiment = made(
        tmp_path,
        BASE + SWEEP + ROWS.replace("70, minority = 40", "[70, 71, 72]").replace("72.5", "[1, 2, 3]"),
        scale="paper",
    )

    def chosen(*names: str) -> set[tuple[str, str]]:
        return {(cell.run, cell.point) for cell in experiment.only(names).cells}

    points = ("share 0.1", "share 0.2", "share 0.3")
    assert experiment.only(()) == experiment
    assert chosen("EL") == {("EL", point) for point in points}
    assert chosen("share 0.2", "share 0.3") == {(run, p) for run in ("EL", "FACADE") for p in points[1:]}
    assert chosen("FACADE", "share 0.1") == {("FACADE", "share 0.1")}
    with pytest.raises(ConfigError, match="mine has no run or point 'Facade'; did you mean 'FACADE'"):
        chosen("EL", "Facade")
