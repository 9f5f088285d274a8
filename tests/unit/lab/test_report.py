"""What a result's folder holds in the end: results.json, table.md, report.html; and that the folder is enough."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from pfl_node.cli import main
from pfl_node.errors import ConfigError
from pfl_node.lab import results, spec
from pfl_node.lab.report import phrases, style
from pfl_node.lab.report.page import page
from pfl_node.lab.report.result import Result, facts, reopen
from pfl_node.lab.report.result_table import TableCell, as_dict, markdown
from pfl_node.lab.report.write import wanted, write
from pfl_node.lab.results import Estimate, Results
from pfl_node.lab.results_dir import ResultsDir
from tests.unit.lab.made_results import made, result, written

VOID = {"meta", "img", "br", "hr", "link", "input"}


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where matplotlib is not installed."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)


class Tags(HTMLParser):
    """What a page is made of; complains when a tag is closed that is not open."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


# -- words -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metric", "value", "text"),
    [
        ("accuracy", 0.7199, "72.0"),
        ("accuracy", -0.0001, "0.0"),
        ("accuracy", -0.101, "−10.1"),
        ("demographic_parity", 0.0306, "0.0306"),
        ("models_sent", 12345.0, "12,345"),
        ("megabytes", 1234.56, "1,234.6"),
        ("rounds_to_target", 70.0, "70"),
    ],
)
def test_figures_are_written_as_papers_print_them(metric: str, value: float, text: str) -> None:
    assert phrases.number(metric, value) == text


def test_one_seed_has_no_interval() -> None:
    assert phrases.spread("accuracy", Estimate((0.5,))) == "50.0"
    assert phrases.spread("accuracy", Estimate((0.5, 0.6))) == "55.0 ± 63.5"
    assert phrases.spread("accuracy", None) == "–"


def test_an_interval_has_as_many_digits_as_its_mean() -> None:
    assert phrases.spread("models_sent", Estimate((723.5, 724.5))) == "724 ± 6"
    assert phrases.spread("cpu", Estimate((2.25, 2.15))) == "2.2 ± 0.6"
    assert phrases.spread("demographic_parity", Estimate((0.04, 0.06))) == "0.0500 ± 0.1271"


def test_a_figure_that_some_seeds_lack_says_how_many_have_it() -> None:
    assert phrases.spread("rounds_to_target", Estimate((70.0,)), of=3) == "70 [1 of 3 seeds]"
    assert str(TableCell("rounds_to_target", None, 87.0, seeds=3, why_not="not reached")) == "not reached (87)"
    assert str(TableCell("precision", None, None, seeds=3)) == "–"


@pytest.mark.parametrize(("metric", "title"), [("settled_after", "settled after, rounds"), ("cpu", "CPU, s")])
def test_a_column_names_its_unit(metric: str, title: str) -> None:
    assert phrases.heading(metric) == title
    assert phrases.heading("rounds_to_target") == "rounds to target"


@pytest.mark.parametrize(("seconds", "text"), [(4.4, "4 s"), (61, "1 min 1 s"), (7260, "2 h 1 min")])
def test_times_are_told_in_two_units(seconds: float, text: str) -> None:
    assert phrases.duration(seconds) == text


# -- tables ----------------------------------------------------------------------------------------------------


def test_the_table_has_our_figure_the_papers_and_the_difference(whole: Path) -> None:
    record = reopen(whole)
    rows = {line.split(" | ")[0].rstrip(): line for line in markdown(record.results, {}).splitlines()}
    ours = record.results.estimate("EL", "", "majority")
    assert ours is not None
    gap = phrases.signed("majority", ours.mean - 0.72)
    assert f"{phrases.spread('majority', ours)} (72.0, {gap})" in rows["| EL"]
    assert "(" not in rows["| Local"]


def test_the_verdicts_stand_under_the_table(whole: Path) -> None:
    text = markdown(reopen(whole).results, {})
    by = r"by 10.0 points or more: \+[\d.]+ ± [\d.]+ points, for 2 of 2 seeds"
    assert re.search(rf"\*\*holds\*\*: minority of FACADE above EL {by}", text)
    assert re.search(r"\*\*contradicted\*\*: accuracy of Local above FACADE: −\d.* for 0 of 2 seeds", text)


def test_the_raw_markdown_is_a_table_whose_columns_stand_below_each_other(whole: Path) -> None:
    text = markdown(reopen(whole).results, {"Seeds": "0, 1"})
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len({tuple(i for i, c in enumerate(row) if c == "|") for row in rows}) == 1
    assert text.endswith("\n- Seeds: 0, 1\n")


def test_results_json_has_every_estimate_also_those_the_table_does_not_show(whole: Path) -> None:
    row = next(r for r in as_dict(reopen(whole).results)["rows"] if r["run"] == "FACADE")
    assert row["majority"]["paper"] == pytest.approx(0.733)
    assert row["majority"]["difference"] == pytest.approx(row["majority"]["mean"] - 0.733)
    assert len(row["equalized_odds"]["values"]) == 2
    assert row["settled_after"]["mean"] > 0


def test_the_legend_says_to_which_points_a_mix_applies(tmp_path: Path) -> None:
    skewed = '[[point]]\nlabel = "skew"\nsettings = { task = { alpha = 0.3, test_mix = "own" } }\n'
    both = '[[point]]\nlabel = "clusters"\n' + skewed
    texts = [
        phrases.legend(Results(spec.load(str(written(tmp_path, sweep=points))), {})) for points in (skewed, both)
    ]
    assert texts[0].endswith("; tested on each node's own mix of classes")
    assert texts[1].endswith("; tested on each node's own mix of classes, where labels are skewed")


def test_a_sweep_has_a_column_for_its_points(tmp_path: Path, bare: None) -> None:
    folder = result(tmp_path, sweep='[sweep]\nsetting = "train.lr"\nvalues = [0.1, 0.01]\nlabel = "lr = {}"\n')
    write(reopen(folder))
    table = (folder / "table.md").read_text()
    assert re.search(r"\| run +\| at +\|", table)
    assert re.search(r"\| EL +\| lr = 0.01 +\|", table)


# -- the page --------------------------------------------------------------------------------------------------


def test_the_page_is_one_file_that_loads_nothing(whole: Path) -> None:
    text = page(reopen(whole), None)
    tags = Tags(text)
    assert tags.open == []
    assert {tag for tag, _ in tags.seen}.isdisjoint({"script", "link", "img", "iframe"})
    assert not re.search(r"url\((?!#)|@import|https?://", text)


def test_the_page_tells_what_is_needed_to_repeat_it(whole: Path) -> None:
    record = reopen(whole)
    text = page(record, None)
    for fact in (
        "Majority and minority",
        "Somebody 2024, table 1",
        "--scale quick --seeds 2",
        str(record.facts["packages"]["numpy"]),
        str(record.facts["machine"]["cores"]) + " cores",
        "24 s of wall time, 18 s of CPU time",
        "6 of 6 done",
    ):
        assert fact in text


def test_runs_made_with_another_commit_are_told_apart(tmp_path: Path) -> None:
    folder = result(tmp_path)
    path = folder / "el" / "seed-0" / "made_with.json"
    made = json.loads(path.read_text())
    made["environments"].append({**made["environments"][0], "commit": "abc", "begun": "2026-01-31T12:34:56+00:00"})
    path.write_text(json.dumps(made))
    told = dict(facts(reopen(folder)))
    assert told["pfl-node"].endswith("commit abc (1 run)")
    assert "(6 runs); " in told["pfl-node"]
    assert "2026-01-31 12:34 UTC" in told["Begun"]
    assert ";" not in told["Machine"]


def test_the_spec_is_in_the_page(whole: Path) -> None:
    assert "by = 10\n\n[[claim]]" in page(reopen(whole), None).partition("<pre")[2]


def test_every_run_has_links_to_its_folder(whole: Path) -> None:
    links = [attrs["href"] for tag, attrs in Tags(page(reopen(whole), None)).seen if tag == "a"]
    assert "facade/seed-1/journal.jsonl" in links
    assert all(link is not None and (whole / link).is_file() for link in links)


def test_settings_that_all_runs_share_are_said_once(whole: Path) -> None:
    text = page(reopen(whole), None)
    shared, own = text.split("<h3>Individual runs</h3>")
    assert shared.endswith("</dl>")
    assert "<dt><code>eval.every</code></dt><dd>5</dd>" in shared
    assert "<td>el</td><td>facade</td>" in own
    assert "policy.degree" in own
    assert "policy.degree" not in shared


def test_what_a_user_wrote_cannot_break_the_page(tmp_path: Path) -> None:
    path = written(tmp_path)
    path.write_text(path.read_text().replace("Majority and minority", '<b>x</b> & \\"y\\"'))
    folder = made(tmp_path / "result", spec.load(str(path)))
    assert "<h1>&lt;b&gt;x&lt;/b&gt; &amp; &quot;y&quot;</h1>" in page(reopen(folder.path), None)


def test_cells_that_are_not_done_are_said_to_be_missing(tmp_path: Path, bare: None) -> None:
    folder = result(tmp_path, leave_out=("el/seed-1", "local/seed-0"))
    write(reopen(folder))
    assert "2 runs not finished:</b> Local, seed 0; EL, seed 1" in (folder / "report.html").read_text()
    assert "Not finished: Local, seed 0; EL, seed 1." in (folder / "table.md").read_text()
    assert json.loads((folder / "results.json").read_text())["missing"] == ["local/seed-0", "el/seed-1"]


def test_the_colours_of_the_page_are_those_of_the_plots(whole: Path) -> None:
    text = page(reopen(whole), None)
    for i, (light, dark) in enumerate(zip(style.COLOURS, style.DARK, strict=True)):
        assert f"--c{i}: {light};" in text
        assert f"--c{i}: {dark};" in text


# -- without matplotlib, without torch -------------------------------------------------------------------------


def test_without_matplotlib_there_are_tables_and_one_line_that_says_what_to_do(tmp_path: Path, bare: None) -> None:
    folder = result(tmp_path)
    said = write(reopen(folder))
    assert said is not None
    assert "pip install 'pfl-node[lab]'" in said
    assert "\n" not in said
    assert sorted(p.name for p in folder.iterdir() if p.suffix in (".md", ".html")) == ["report.html", "table.md"]
    assert not (folder / "plots").exists()
    assert "matplotlib was not installed" in (folder / "report.html").read_text()


def test_a_report_needs_no_torch_and_loads_matplotlib_only_to_draw() -> None:
    code = "import sys, pfl_node.lab.report.write, pfl_node.lab.result_comparison, pfl_node.lab.tensorboard\n"
    code += "print(*sorted({'torch', 'matplotlib', 'sklearn', 'pandas'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


# -- from the folder alone -------------------------------------------------------------------------------------


def test_a_folder_opened_again_tells_what_the_run_told(tmp_path: Path) -> None:
    experiment = spec.load(str(written(tmp_path)))
    folder = made(tmp_path / "result", experiment)
    first = Result(folder, results.read(experiment, folder))
    again = reopen(folder.path)
    assert as_dict(again.results) == as_dict(first.results)
    assert (again.command, again.experiment.name) == (first.command, "mine")


def test_the_command_repeats_what_was_wished(tmp_path: Path) -> None:
    path = written(tmp_path)
    wishes = ["run=some where", "task.samples=40", "train.batch=4"]
    folder = made(tmp_path / "result", spec.load(str(path), seeds=1, sets=wishes))
    command = reopen(folder.path).command
    assert command.startswith(f"pfl-node lab run {folder.path / 'spec.toml'} --scale quick --seeds 1 --set ")
    for wish in ("--set 'run=some where'", "--set task.samples=40", "--set train.batch=4"):
        assert wish in command


def test_runs_that_were_not_begun_do_not_hide_what_was_wished(tmp_path: Path) -> None:
    """As after --only: the directory has no settings of the others."""
    experiment = spec.load(str(written(tmp_path)), seeds=1, sets=["rounds=9"])
    folder = made(tmp_path / "result", experiment, leave_out=("el/seed-0",))
    assert not (folder.path / "el").exists()
    assert "--set rounds=9" in reopen(folder.path).command


def test_a_shipped_experiment_is_repeated_by_its_name(tmp_path: Path) -> None:
    folder = ResultsDir(tmp_path / "result")
    folder.prepare(spec.load("digits-clusters", seeds=1))
    assert reopen(folder.path).command == "pfl-node lab run digits-clusters --scale quick --seeds 1"


def test_a_setting_that_is_not_known_any_more_does_not_hide_a_result(tmp_path: Path) -> None:
    folder = result(tmp_path)
    told = folder / "el" / "seed-0" / "settings.json"
    old = json.loads(told.read_text())
    old["settings"]["train"]["gone"] = 3
    told.write_text(json.dumps(old))
    record = reopen(folder)
    assert len(record.results.found) == 6
    assert "train.gone" in page(record, None)


@pytest.mark.parametrize("lost", ["spec.toml", "environment.json"])
def test_another_folder_is_one_clear_line(tmp_path: Path, lost: str) -> None:
    folder = result(tmp_path)
    (folder / lost).unlink()
    with pytest.raises(ConfigError, match=f"not a results directory of `pfl-node lab run`: it has no {lost}"):
        reopen(folder)


def test_a_sweep_is_drawn_also_when_nobody_asked(tmp_path: Path) -> None:
    path = written(tmp_path, plots='["accuracy"]', sweep='[sweep]\nsetting = "train.lr"\nvalues = [0.1, 1]\n')
    assert wanted(spec.load(str(path))) == ["sweep", "accuracy"]
    assert "fairness" in wanted(spec.load(str(written(tmp_path, plots="[]"))))


# -- the verb --------------------------------------------------------------------------------------------------


def test_the_verb_writes_it_all_and_prints_the_table(
    tmp_path: Path, bare: None, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = result(tmp_path)
    assert main(["lab", "report", str(folder)]) == 0
    out, err = capsys.readouterr()
    assert "CONTRADICTED: accuracy of Local above FACADE" in out
    assert out.rstrip().endswith("report.html")
    assert "pip install 'pfl-node[lab]'" in err


def test_a_result_without_any_finished_run_is_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = tuple(f"{run}/seed-{seed}" for run in ("local", "el", "facade") for seed in (0, 1))
    assert main(["lab", "report", str(result(tmp_path, leave_out=cells))]) == 1
    assert "no run has finished yet" in capsys.readouterr().err


def test_messages_that_were_refused_for_no_fault_are_warned_of(
    tmp_path: Path, bare: None, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = result(tmp_path)
    for path in folder.glob("el/seed-*/summary.json"):
        summary = json.loads(path.read_text()) | {"refused": {"future_round": 51}}
        summary["per_node"][0]["diverged"] = 3
        path.write_text(json.dumps(summary))
    code = main(["lab", "report", str(folder)])
    err = capsys.readouterr().err
    why = "102 future_round (the round was too far ahead)"
    said = f"EL: 102 messages were refused without any injected fault: {why}"
    assert code == 0
    assert f"warning: {said}\n" in err
    assert re.search(r"warning: EL: 2 of \d+ nodes discarded a training or gradient that was not finite", err)
    assert said in (folder / "table.md").read_text()
    assert said in (folder / "report.html").read_text()
