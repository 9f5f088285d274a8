"""Records of results, the page made from them, and the check of a rerun."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from pfl_node.cli import main
from pfl_node.errors import ConfigError
from pfl_node.lab import spec
from pfl_node.lab.experiment import Claim
from pfl_node.lab.publish import paper_groups, results_page
from pfl_node.lab.publish.records import (
    RecordedClaim,
    RecordedFigure,
    RecordedRow,
    ResultRecord,
    load,
    load_all,
    portable,
    record_of,
    save,
    verify,
)
from pfl_node.lab.publish.standings import standings, times_tied
from pfl_node.lab.report import phrases
from pfl_node.lab.report.result import Result, reopen
from pfl_node.lab.results_dir import ResultsDir
from tests.unit.lab.made_results import made, result, written

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return result(tmp_path_factory.mktemp("publish"), seeds=4, plots="[]")


@pytest.fixture(scope="module")
def record(folder: Path) -> ResultRecord:
    return record_of(reopen(folder), "mine-4", ["Made by hand."])


@pytest.fixture(scope="module")
def text(record: ResultRecord) -> str:
    """The page of two records, one of them without journals. It reads all shipped specs."""
    bare = replace(record, name="bare-4", journals={}, notes=())
    return results_page.page([record, bare], ["## By hand\n\nText.\n"])


def claim(by: float, *differences: float) -> RecordedClaim:
    return RecordedClaim(Claim("accuracy", "A", "B", by), "", dict(enumerate(differences)))


def words(text: str) -> str:
    return " ".join(text.split())


# -- records ---------------------------------------------------------------------------------------------------


def test_a_record_survives_its_file(record: ResultRecord, tmp_path: Path) -> None:
    path = save(record, tmp_path)
    assert path.name == "mine-4.json"
    assert load(path) == record
    assert load_all(tmp_path) == [record]


def test_a_record_has_the_figures_of_each_seed_and_the_papers(folder: Path, record: ResultRecord) -> None:
    found = reopen(folder).results
    row = next(row for row in record.rows if row.run == "FACADE")
    assert row.figures["minority"].values == found.by_seed("FACADE", "", "minority")
    assert row.figures["minority"].paper == 0.6
    (first, _) = record.claims
    assert first.verdict.holding == 4
    assert list(first.differences) == [0, 1, 2, 3]


def test_a_record_tells_how_its_size_differs_from_the_papers(record: ResultRecord) -> None:
    assert record.rows[0].differences == ["8 of 32 nodes", "20 of 40 rounds"]


def test_another_target_is_told_and_is_not_compared_with_the_papers_figures(tmp_path: Path) -> None:
    figures = "figures = { majority = 72.0, rounds_to_target = 30 }"
    path = written(tmp_path, plots="[]", seeds="1\ntarget = 0.5")
    text = path.read_text().replace("figures = { majority = 72.0, minority = 38.8 }", figures)
    path.write_text(text.replace('"precision"', '"rounds_to_target"'))
    made(tmp_path / "result", spec.load(str(path)))
    row = record_of(reopen(tmp_path / "result")).rows[1]
    assert (row.run, row.figures["majority"].paper) == ("EL", 0.72)
    assert row.figures["rounds_to_target"].paper is None
    assert row.differences[-1] == "target 50 % (spec: 70 %)"
    paper = {(f.run, f.metric): f.value for f in spec.load(str(path), "paper").figures}
    assert paper["EL", "rounds_to_target"] == 30


def test_a_setting_that_the_run_did_not_know_is_no_difference(tmp_path: Path) -> None:
    path = result(tmp_path, plots="[]", seeds=1)
    settings = next(path.rglob("settings.json"))
    facts = json.loads(settings.read_text())
    del facts["settings"]["train"]["lookahead"]
    settings.write_text(json.dumps(facts))
    for row in record_of(reopen(path)).rows:
        assert row.differences == ["8 of 32 nodes", "20 of 40 rounds"]


def test_an_option_of_the_task_at_one_scale_only_is_a_difference(tmp_path: Path) -> None:
    path = written(tmp_path, plots="[]", seeds="1\nsettings.task = { auxiliary = 0.5 }")
    made(tmp_path / "result", spec.load(str(path)))
    for row in record_of(reopen(tmp_path / "result")).rows:
        assert row.differences[2:] == ["task.auxiliary = 0.5 (spec: not set)"]


def test_a_point_of_the_quick_scale_alone_is_not_taken_for_the_papers(tmp_path: Path) -> None:
    points = '[[point]]\nlabel = "both"\n\n[[point]]\nlabel = "few"\nonly = "quick"\n'
    path = result(tmp_path, plots="[]", seeds=1, sweep=points)
    differences = {row.point: row.differences for row in record_of(reopen(path)).rows}
    assert differences["few"] == ["not in the spec at the paper's scale"]
    assert differences["both"] == ["8 of 32 nodes", "20 of 40 rounds"]


def test_a_sweep_and_a_swarm_do_not_replace_the_record_of_the_experiment(tmp_path: Path) -> None:
    path = str(written(tmp_path, seeds=1, plots="[]"))
    swept = made(tmp_path / "swept", spec.load(path, sweeps=["train.lr=0.01,0.5"]))
    swarm = made(tmp_path / "swarm", spec.load(path).on("swarm"))
    assert record_of(reopen(swept.path)).name == "mine-quick-train.lr"
    assert record_of(reopen(swarm.path)).name == "mine-quick-swarm"


def test_the_command_has_no_path_of_this_machine(record: ResultRecord) -> None:
    assert record.command == "pfl-node lab run mine.toml --scale quick --seeds 4"


def test_a_shipped_spec_that_was_extended_since_is_named_and_its_claims_are_judged(tmp_path: Path) -> None:
    before = spec.SHIPPED.joinpath("digits-clusters.toml").read_text(encoding="utf-8")
    old = tmp_path / "digits-clusters.toml"
    old.write_text(before[: before.index("[[claim]]")], encoding="utf-8")
    folder = ResultsDir(tmp_path / "result")
    folder.prepare(planned := spec.load(str(old), seeds=1))
    cell = planned.cells[0]
    folder.begin(cell)
    (folder.place(cell) / "summary.json").write_text(
        '{"accuracy": 0.5, "bytes_sent": 0, "accuracy_by_cluster": {}, "per_node": []}'
    )
    (folder.place(cell) / "journal.jsonl").write_text("")
    found = record_of(reopen(folder.path))
    assert found.command.startswith("pfl-node lab run digits-clusters --scale quick --seeds 1")
    assert [claim.claim.higher for claim in found.claims] == ["PENS"]
    assert len(found.missing) == 3


def test_a_spec_with_the_name_of_a_shipped_one_but_another_title_is_named_by_its_file(tmp_path: Path) -> None:
    shipped = spec.SHIPPED.joinpath("digits-clusters.toml").read_text(encoding="utf-8")
    own = tmp_path / "digits-clusters.toml"
    own.write_text(shipped.replace('title = "', 'title = "Another experiment: ', 1), encoding="utf-8")
    folder = ResultsDir(tmp_path / "result")
    folder.prepare(planned := spec.load(str(own), seeds=1))
    folder.begin(planned.cells[0])
    (folder.place(planned.cells[0]) / "journal.jsonl").write_text("")
    found = reopen(folder.path)
    assert portable(found).startswith("pfl-node lab run digits-clusters.toml --scale quick")
    assert portable(found, tmp_path).startswith(f"pfl-node lab run {own} --scale quick")


def test_a_record_of_uncommitted_changes_is_warned_of(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Result, "environments", property(lambda self: [{"commit": "0123456789abcdef+"}]))
    assert main(["lab", "record", str(folder), "--records", str(tmp_path), "--name", "x"]) == 0
    said = capsys.readouterr()
    assert "made with uncommitted changes at 0123456789ab, so nobody else can repeat it" in said.err
    assert said.out.count("\n") == 1


def test_a_name_without_letters_for_a_file_does_not_replace_the_record_of_the_default_name(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lab", "record", str(folder), "--records", str(tmp_path), "--name", "é"]) == 2
    assert "--name é has no ASCII letter or digit" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_record_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.json").write_text('{"name": 1}')
    assert main(["lab", "publish", "--records", str(tmp_path), "--to", str(tmp_path / "x.md")]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "bad.json is not a record: " in err
    assert not (tmp_path / "x.md").exists()


@pytest.mark.parametrize("text", ["hello", "[]"])
def test_what_is_wrong_with_a_whole_file_has_no_place(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(ConfigError, match=r"bad\.json is not a record: I"):
        load(tmp_path / "bad.json")


def test_a_directory_without_records_does_not_replace_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "results.md"
    page.write_text("mine")
    assert main(["lab", "publish", "--records", str(tmp_path), "--to", str(page)]) == 2
    assert "has no records: make them with `pfl-node lab record DIR`" in capsys.readouterr().err
    assert page.read_text() == "mine"


# -- the page --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("by", "differences", "judged"),
    [
        (0.1, (0.2, 0.21, 0.19), "holds"),
        (0.1, (0.2, 0.0, 0.2), "undecided"),
        (0.1, (0.05, 0.06, 0.16), "undecided"),  # the mean is below, the end of the interval is not
        (0.1, (0.09, 0.085, 0.08), "contradicted"),
        (0.1, (0.2,), "one seed: as claimed"),
        (0.1, (0.09,), "one seed: not as claimed"),
        (0.0, (), "not measured"),
        (0.0, (0.5, 0.0, -0.5), "undecided"),
        (0.0, (0.0, 0.0), "contradicted"),  # equal is not above
        (-0.1, (-0.1, -0.1), "holds"),  # no more than 0.1 below
    ],
)
def test_a_claim_is_judged_by_its_interval(by: float, differences: tuple[float, ...], judged: str) -> None:
    assert phrases.judgement(claim(by, *differences).verdict) == judged


def test_a_lower_bound_contradicts_nothing() -> None:
    """A run that never reached the target would have taken longer than all its rounds."""
    bound = replace(claim(10.0, 5.0, 5.1, 5.2), at_least=True)
    assert phrases.judgement(bound.verdict) == "undecided"


def test_a_negative_margin_is_told_as_a_distance_below() -> None:
    verdict = claim(-0.005, 0.01).verdict
    assert phrases.verdict(verdict) == "accuracy of A at most 0.5 points below B: +1.0 points"


def cells_of(text: str, start: str) -> list[str]:
    line = next(line for line in text.splitlines() if line.startswith(start))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_first_tables_count_claims_by_paper_and_experiment(text: str) -> None:
    assert cells_of(text, "| [mine-4]")[2:] == ["8 of 32 nodes; 20 of 40 rounds", "4", "1", "0", "1", "0"]
    thesis = cells_of(text, "| Karlsson & Onoszko 2021 (PENS, thesis)")
    specs = [found for _, found in paper_groups.shipped() if found.paper.startswith("Karlsson")]
    stated = sum(claim.only != "quick" for found in specs for claim in found.claim)
    assert thesis[1:] == [str(len(specs)), "0", "0", "0", "0", "0", str(stated)]
    assert "digits-clusters" not in text  # no paper


def test_papers_come_first_then_what_no_paper_has(record: ResultRecord) -> None:
    ours = replace(record, name="ours", paper="no paper: a comparison")
    expected = replace(record.claims[0], claim=replace(record.claims[0].claim, ours=True))
    elsewhere = replace(record, name="elsewhere", claims=[expected])
    papers = [replace(record, name=f"of-{who}", paper=f"{who} 2020 (X), table 1") for who in ("Zoe", "Ann")]
    text = results_page.page([ours, elsewhere, *papers])
    headings = [line for line in text.splitlines() if line.startswith("## ")]
    assert headings[1:5] == [
        "## Ann 2020 (X)",
        "## Zoe 2020 (X)",
        "## Settings without figures in a paper",
        "## Experiments of our own",
    ]
    assert "(ours) |" in words(text[text.index("### elsewhere") : text.index("### ours")])


def test_a_claim_stands_beside_the_papers_difference(text: str) -> None:
    cells = cells_of(text, "| minority of FACADE above EL by 10.0 points or more")
    assert cells[1] == "+21.2"
    assert cells[3:] == ["4 of 4", "holds"]


def test_the_cost_of_the_papers_scale_is_estimated_from_the_quick_scale(record: ResultRecord) -> None:
    quick = replace(record, experiment="facade-settlement", cpu_seconds=3 * 4 * 8 * 20 * 0.5)  # 0.5 s each
    text = results_page.page([quick])
    row = next(line for line in text.splitlines() if line.startswith("| `facade-settlement`"))
    cells = spec.load("facade-settlement", "paper").cells
    hours = 0.5 * sum(cell.nodes * (cell.settings.rounds or 1) for cell in cells) / 3600
    assert row.rstrip("| ").endswith(f" {hours:,.0f} h")
    assert "8 of 32 nodes; 20 of 40 rounds; 4 seeds" in row
    smaller = replace(quick, scale="paper")  # with fewer rounds, for example
    assert "`facade-settlement`" in results_page.page([smaller])
    whole = replace(smaller, rows=[replace(row, differences=()) for row in quick.rows])
    assert "`facade-settlement`" not in results_page.page([whole])


def test_the_cost_is_not_estimated_from_another_model(record: ResultRecord) -> None:
    rows = [replace(row, differences=["task.model = cnn (spec: resnet)"]) for row in record.rows]
    other = replace(record, experiment="facade-settlement", cpu_seconds=100.0, rows=rows)
    assert cells_of(results_page.page([other]), "| `facade-settlement`")[-1] == "–"


def test_each_row_has_our_mean_the_papers_figure_and_what_differs(text: str) -> None:
    row = next(line for line in text.splitlines() if line.startswith("| FACADE "))
    assert "(60.0) " in row  # without a difference, because the sizes differ
    assert " ± " in row
    assert "All rows: 8 of 32 nodes; 20 of 40 rounds." in text
    assert "- Made by hand." in text
    assert text.endswith("## By hand\n\nText.\n")


def test_what_some_rows_differ_in_is_told_once_below_the_table(record: ResultRecord) -> None:
    """As a column, it would make every line of the table as long as the longest text."""
    local, el, facade = record.rows
    own = "policy.degree = 2 (spec: 4); train.lr = 0.02 (spec: 0.01)"
    rows = [local, *(replace(row, differences=[*row.differences, *own.split("; ")]) for row in (el, facade))]
    text = results_page.page([replace(record, rows=rows)])
    table = [line for line in text.splitlines() if line.startswith(("| Local ", "| EL ", "| FACADE "))]
    assert [line.rsplit("|", 2)[1].strip() for line in table] == ["", "1", "1"]
    assert text.count(own) == 1
    assert f"\n\n1. {own}\n" in text


def test_several_sizes_are_counted_at_a_glance_and_told_in_the_table_of_the_record(record: ResultRecord) -> None:
    rows = [replace(row, differences=["8 of 32 nodes", f"{i} of 40 rounds"]) for i, row in enumerate(record.rows)]
    text = results_page.page([replace(record, rows=rows)])
    assert cells_of(text, "| [mine-4]")[2] == "8 of 32 nodes; several numbers of rounds"
    assert "\n1. 0 of 40 rounds\n2. 1 of 40 rounds\n" in text


def test_every_experiment_at_a_glance_leads_to_its_section(text: str) -> None:
    assert "\n[mine-4]: #mine-4\n" in text
    assert "\n### mine-4\n" in text


def test_our_difference_from_the_paper_is_shown_at_its_size_only(record: ResultRecord) -> None:
    whole = replace(record, rows=[replace(row, differences=()) for row in record.rows])
    row = next(line for line in results_page.page([whole]).splitlines() if line.startswith("| FACADE "))
    assert "(60.0, " in row


def test_a_record_without_digests_says_so(text: str) -> None:
    bare, with_journals = (words(text[text.index(f"### {name}") :]) for name in ("bare-4", "mine-4"))
    assert "the journals were not kept" in bare[: bare.index("### mine-4")]
    assert "the journals were not kept" not in with_journals


def test_columns_without_content_are_left_out(record: ResultRecord) -> None:
    some = replace(record, metrics=[*record.metrics, "settled_after"])
    assert results_page.page([some]).count("settled after") == 0


def test_the_page_of_results_is_made_from_the_records() -> None:
    """If this fails: pfl-node lab publish."""
    folder = ROOT / "docs" / "records"
    text = results_page.page(load_all(folder), results_page.appendices(folder))
    assert text == (ROOT / "docs" / "results.md").read_text(encoding="utf-8")


def test_the_commits_of_the_records_are_in_the_history() -> None:
    """A commit that was rebased cannot be checked out to repeat the record."""
    git = ["git", "-C", str(ROOT)]
    counted = subprocess.run([*git, "rev-list", "--count", "HEAD"], capture_output=True, check=False).stdout
    if int(counted or 0) < 100:
        pytest.skip("not a checkout with the whole history")
    named = {
        commit.rstrip("+"): record.name for record in load_all(ROOT / "docs/records") for commit in record.commits
    }
    unknown = [
        f"{commit} of {name}"
        for commit, name in named.items()
        if subprocess.run([*git, "merge-base", "--is-ancestor", commit, "HEAD"], check=False).returncode
    ]
    assert unknown == []


# -- a rerun ---------------------------------------------------------------------------------------------------


def test_a_rerun_with_the_same_journals_is_the_same(
    folder: Path, record: ResultRecord, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = save(record, tmp_path)
    assert main(["lab", "verify", str(path), str(folder)]) == 0
    assert capsys.readouterr().out.count("same") == 12


def test_a_rerun_of_some_runs_is_compared_as_far_as_it_goes(record: ResultRecord, tmp_path: Path) -> None:
    again = result(tmp_path, seeds=1, plots="[]")
    outcomes = [check.outcome for check in verify(record, reopen(again))]
    assert outcomes.count("same") == 3
    assert outcomes.count("missing") == 9


def test_a_journal_that_differs_is_named_and_the_exit_code_is_1(
    record: ResultRecord, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = result(tmp_path, seeds=4, plots="[]", better=0.01)
    path = save(record, tmp_path / "records")
    assert main(["lab", "verify", str(path), str(again)]) == 1
    assert "different" in capsys.readouterr().out


def test_a_difference_may_come_from_another_processor(
    record: ResultRecord, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = replace(record, versions={**record.versions, "processor": "a slide rule", "python": "2.7"})
    path, again = save(old, tmp_path), result(tmp_path / "again", seeds=4, plots="[]", better=0.01)
    assert main(["lab", "verify", str(path), str(again)]) == 1
    assert "processor a slide rule in the record" in (said := capsys.readouterr().err)
    assert "python 2.7 in the record" in said


def test_a_record_without_digests_cannot_be_verified(
    record: ResultRecord, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = save(replace(record, journals={}), tmp_path)
    assert main(["lab", "verify", str(path), str(folder)]) == 2
    assert "has no digests" in capsys.readouterr().err


# -- standings -------------------------------------------------------------------------------------------------


def compared(**values: tuple[float, ...]) -> list[RecordedRow]:
    """Rows of runs at two points; at the second, all have only one seed."""
    whole = [
        RecordedRow(run, "first", 4, 5, (), {"accuracy": RecordedFigure({s: x / 100 for s, x in enumerate(v)})})
        for run, v in values.items()
    ]
    single = RecordedFigure({0: 0.5})
    return [*whole, *(replace(row, point="second", figures={"accuracy": single}) for row in whole)]


def test_standings_are_paired_by_seed(record: ResultRecord) -> None:
    """B is 1 below A for every seed; C is 5 below it on average, but above it for one seed."""
    rows = compared(C=(81, 80, 67), A=(80, 81, 82), B=(79.1, 79.9, 81))
    found = standings(replace(record, rows=rows), "accuracy")
    assert list(found) == ["first"]
    assert [(s.run, s.tied) for s in found["first"]] == [("A", True), ("B", False), ("C", True)]
    assert times_tied(found) == [("A", 1), ("C", 1)]


def test_the_best_run_has_the_lowest_mean_where_lower_is_better(record: ResultRecord) -> None:
    rows = [replace(row, figures={"loss": row.figures["accuracy"]}) for row in compared(A=(80, 81), B=(70, 71.1))]
    found = standings(replace(record, rows=rows), "loss")
    assert [(s.run, s.tied) for s in found["first"]] == [("B", True), ("A", False)]
    own = replace(record, paper="no paper: a comparison", rows=rows, metrics=["loss"], claims=())
    text = words(results_page.page([own]))
    assert "lowest loss" in text
    assert "Mean rank by loss: B 1.0, A 2.0." in text


def test_the_page_shows_standings_of_our_own_experiments_only(record: ResultRecord) -> None:
    rows = compared(A=(80, 81, 82), B=(79.1, 79.9, 81), C=(81, 80, 67))
    own = replace(record, paper="no paper: a comparison", rows=rows, metrics=["accuracy"], claims=())
    text = words(results_page.page([own]))
    assert "- first: A (81.0); tied with it: C (76.0)" in text
    assert "Best or tied at how many of the 1 points: A 1, C 1." in text
    assert "Mean rank by accuracy: A 1.0, B 2.0, C 3.0." in text
    assert "tied with it" not in results_page.page([replace(own, paper="Somebody 2020")])


def test_a_comparison_at_several_points_has_a_column_for_each_point(record: ResultRecord) -> None:
    def row(run: str, point: str, accuracy: float, minority: float) -> RecordedRow:
        values = {"accuracy": accuracy, "minority": minority, "cpu": accuracy}
        figures = {name: RecordedFigure({s: v + s / 100 for s in range(3)}) for name, v in values.items()}
        return RecordedRow(run, point, 20, 40, (), figures)

    rows = [
        row("A", "split", 0.8, 0.7),
        row("A", "skew", 0.6, 0.6),
        row("B", "split", 0.9, 0.5),
        row("B", "skew", 0.5, 0.5),
    ]
    metrics = ["accuracy", "minority", "cpu"]
    own = replace(record, paper="no paper: a comparison", rows=rows, metrics=metrics, claims=())
    text = words(results_page.page([own]))
    assert "Every run has 20 nodes and 40 rounds." in text
    assert "All rows" not in text  # it has no other scale to differ from
    assert "| run | split | skew | CPU, s |" in text
    assert "| A | 81.0 ± 2.5 | **61.0 ± 2.5** | 0.7 |" in text
    assert "| B | **91.0 ± 2.5** | 51.0 ± 2.5 | 0.7 |" in text
    assert (
        "| run | split | | --- | -----------" in text
    )  # the minority is the same as all nodes where labels are skewed
    longer = [replace(rows[0], rounds=80), *rows[1:]]
    assert "20 nodes, 80 rounds" in results_page.page([replace(own, rows=longer)])
    assert "Every run has" not in results_page.page([replace(own, rows=rows[::2])])  # one point
