"""`lab export`: tidy tables, LaTeX, figures, and paired tests over the seeds."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from pfl_node.cli import main
from pfl_node.lab import result_comparison, spec
from pfl_node.lab.export import latex, tidy
from pfl_node.lab.export.paired_tests import holm, paired_t, paired_tests, sign_flips
from pfl_node.lab.export.write_export import export
from pfl_node.lab.report.result import Result, reopen
from pfl_node.lab.report.result_table import TableCell, TableRow
from pfl_node.lab.results import Estimate, Results
from tests.unit.lab.made_results import made, result, written


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return reopen(result(tmp_path_factory.mktemp("export"), seeds=4, plots='["accuracy"]'))


def rows(path: Path) -> list[dict[str, Any]]:
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


# -- files -----------------------------------------------------------------------------------------------------


def test_the_verb_writes_every_kind_of_file_and_names_them(
    record: Result, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lab", "export", str(record.folder.path), "--to", str(tmp_path / "out")]) == 0
    named = {Path(line) for line in capsys.readouterr().out.splitlines()}
    found = {path for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert named == found
    assert {path.suffix for path in found} == {".csv", ".parquet", ".tex", ".pdf", ".svg"}
    for path in found:
        if path.suffix == ".pdf":
            assert path.read_bytes().startswith(b"%PDF")


def test_rounds_has_one_row_for_each_value_that_a_node_reported(record: Result, tmp_path: Path) -> None:
    tidy.write(tmp_path / "rounds", tidy.ROUNDS, tidy.rounds(record))
    found = rows(tmp_path / "rounds.csv")
    journal = record.folder.path / "el" / "seed-1" / "journal.jsonl"
    told = [json.loads(line) for line in journal.read_text().splitlines()]
    wanted = [row for row in told if row["event"] == "round" and "test_accuracy" in row and row["node"] == "n003"]
    mine = [r for r in found if (r["run"], r["seed"], r["node"]) == ("EL", "1", "n003")]
    accuracies = [r for r in mine if r["metric"] == "test_accuracy"]
    assert [(int(r["round"]), float(r["value"])) for r in accuracies] == [
        (row["round"] + 1, row["test_accuracy"]) for row in wanted
    ]
    assert {(r["policy"], r["cluster"], r["point"]) for r in accuracies} == {("el", "0", "")}


def test_the_loss_of_each_head_is_a_value_too(record: Result) -> None:
    found = [r for r in tidy.rounds(record) if (r["run"], r["seed"], r["node"]) == ("FACADE", 0, "n000")]
    first = {r["metric"]: r["value"] for r in found if r["round"] == 1}
    assert (first["losses.0"], first["losses.1"]) == (1.0, 1.0)
    assert not any(name.startswith("from") for name in first)  # names of peers are no figures


def test_a_speed_up_is_exported_and_compared_like_every_other_measure(tmp_path: Path) -> None:
    path = written(tmp_path, plots="[]")
    text = path.read_text().replace('"megabytes"]', '"speed_up"]').replace("target = 0.7", "target = 0.45")
    path.write_text(text.replace('label = "FACADE"', 'label = "FACADE"\nbaseline = "EL"'))
    record = reopen(made(tmp_path / "result", spec.load(str(path))).path)
    found = {r["seed"]: r["value"] for r in tidy.runs(record) if r["metric"] == "speed_up"}
    assert found == record.results.by_seed("FACADE", "", "speed_up") != {}
    side = result_comparison.side(record.folder.path)
    assert "speed_up" in {line.metric for line in result_comparison.compare(side, side).lines}


def test_parquet_has_the_same_as_csv(record: Result, tmp_path: Path) -> None:
    from pyarrow import parquet

    tidy.write(tmp_path / "runs", tidy.RUNS, tidy.runs(record))
    table = parquet.read_table(tmp_path / "runs.parquet")
    assert table.column_names == list(tidy.RUNS)
    plain = [{k: "" if v is None else str(v) for k, v in row.items()} for row in table.to_pylist()]
    assert plain == rows(tmp_path / "runs.csv")
    one = [row for row in table.to_pylist() if (row["run"], row["seed"], row["metric"]) == ("EL", 0, "minority")]
    assert one[0]["paper"] == pytest.approx(0.388)


def test_an_export_twice_is_the_same_byte_for_byte(record: Result, tmp_path: Path) -> None:
    for place in ("one", "two"):
        export(record, tmp_path / place)
    for path in (tmp_path / "one").rglob("*.*"):
        assert path.read_bytes() == (tmp_path / "two" / path.relative_to(tmp_path / "one")).read_bytes()


def test_without_pyarrow_and_matplotlib_the_rest_is_written(
    record: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tidy, "find_spec", lambda name: None)
    monkeypatch.setattr("pfl_node.lab.report.style.find_spec", lambda name: None)
    files, notes = export(record, tmp_path)
    assert {path.suffix for path in files} == {".csv", ".tex"}
    assert [note.partition(" because")[0] for note in notes] == ["no Parquet", "no figures"]


# -- LaTeX -----------------------------------------------------------------------------------------------------


def test_the_table_is_for_booktabs_with_the_best_in_bold_and_the_paper_beside(record: Result) -> None:
    text = latex.result(record.results)
    for rule in (r"\toprule", r"\midrule", r"\bottomrule", r"\begin{tabular}{lrrrrrr}"):
        assert rule in text
    (facade,) = (line for line in text.splitlines() if line.startswith("FACADE"))
    assert facade.count("&") == 6
    assert r"$\pm$" in facade
    assert "(60.0)" in facade
    assert facade.split(" & ")[3].startswith(r"\textbf{")


def test_a_mean_that_some_seeds_lack_is_not_the_best() -> None:
    def cell(*values: float) -> TableCell:
        return TableCell("rounds_to_target", Estimate(values), None, seeds=3)

    few, slow, slower = cell(4.0), cell(8.0, 9.0, 10.0), cell(9.0, 9.0, 11.0)
    line = TableRow("A", "", (few,)), TableRow("B", "", (slow,)), TableRow("C", "", (slower,))
    texts = [latex._figures(row, line)[0] for row in line]
    assert [text.startswith(r"\textbf{") for text in texts] == [False, True, False]


def test_letters_that_mean_something_to_latex_are_escaped() -> None:
    assert latex.escape("50 % of A_1 & {B} \\ ~^") == (
        r"50 \% of A\_1 \& \{B\} \textbackslash{} \textasciitilde{}\textasciicircum{}"
    )
    assert latex.escape("p < 0.001 | a > b") == "p $<$ 0.001 $|$ a $>$ b"


@pytest.mark.parametrize("label", ["[EL] of 2023", "* ours"])
def test_a_row_does_not_begin_with_an_argument_of_the_row_before(tmp_path: Path, label: str) -> None:
    path = written(tmp_path, seeds=2, plots="[]")
    path.write_text(path.read_text().replace('"EL"', f'"{label}"'))
    experiment = spec.load(str(path))
    found = Results(experiment, {})
    assert f"{{}}{label} &" in latex.result(found)
    assert f"\n{label}" not in latex.result(found)


# -- paired tests ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gaps", [(1.0, 2.0, 3.0), (0.5, -0.1, 0.2, 0.4), tuple(0.1 * i - 0.3 for i in range(12))])
def test_the_t_test_is_that_of_scipy(gaps: tuple[float, ...]) -> None:
    assert paired_t(gaps) == pytest.approx(stats.ttest_1samp(gaps, 0).pvalue)


def test_the_test_of_signs_is_exact() -> None:
    assert sign_flips((1.0, 2.0, 3.0, 4.0)) == 2 / 16
    assert sign_flips((-1.0, 2.0, 3.0, 4.0)) == 4 / 16  # sums of at least 8: 10 and 8
    assert sign_flips((1.0, -1.0)) == 1.0
    assert sign_flips((0.1,) * 20) == pytest.approx(0, abs=1e-4)


def test_one_seed_or_equal_differences_are_no_t_test() -> None:
    assert paired_t((1.0,)) is None
    assert sign_flips((1.0,)) is None
    assert paired_t((0.5, 0.5)) is None


def test_holms_correction_is_that_of_the_textbook() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([None, 0.5, 0.6]) == [None, 1.0, 1.0]


def test_runs_are_compared_seed_by_seed_and_corrected_over_all_pairs(record: Result) -> None:
    found = paired_tests(record.results, ("minority",))
    assert [(test.a, test.b) for test in found] == [("Local", "EL"), ("Local", "FACADE"), ("EL", "FACADE")]
    test = found[2]
    values = [record.results.by_seed(run, "", "minority") for run in ("EL", "FACADE")]
    assert test.difference.values == pytest.approx([values[0][s] - values[1][s] for s in range(4)])
    assert test.signs == 2 / 16
    assert test.signs_holm == 6 / 16
    assert "0.375" in latex.tests(record.results, found)
