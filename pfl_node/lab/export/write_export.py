"""Writes an export: rounds, runs and tests as CSV and Parquet, LaTeX tables, and figures as PDF and SVG."""

from __future__ import annotations

from pathlib import Path

from pfl_node.lab.export import latex, tidy
from pfl_node.lab.export.paired_tests import paired_tests
from pfl_node.lab.report import style
from pfl_node.lab.report.result import Result
from pfl_node.lab.report.write import DRAW, wanted
from pfl_node.store.atomic import make_directory, write_atomic

NO_PARQUET = "no Parquet because pyarrow is not installed: pip install 'pfl-node[export]'"
NO_FIGURES = "no figures because matplotlib is not installed: pip install 'pfl-node[lab]'"


def export(record: Result, out: Path) -> tuple[list[Path], list[str]]:
    """Returns the files, and notes about those that could not be written. Files of an earlier export are
    replaced."""
    make_directory(out)
    paired = paired_tests(record.results, record.experiment.metrics)
    files = tidy.write(out / "rounds", tidy.ROUNDS, tidy.rounds(record))
    files += tidy.write(out / "runs", tidy.RUNS, tidy.runs(record))
    files += tidy.write(out / "tests", tidy.TESTS, tidy.tests(record, paired))
    for name, text in {
        "table.tex": latex.result(record.results),
        "tests.tex": latex.tests(record.results, paired),
    }.items():
        write_atomic(out / name, text.encode())
        files.append(out / name)
    notes = [] if tidy.has_parquet() else [NO_PARQUET]
    if not style.is_available():
        return files, [*notes, NO_FIGURES]
    return files + _figures(record, out / "figures"), notes


def _figures(record: Result, place: Path) -> list[Path]:
    make_directory(place)
    files = []
    with style.styled():
        for name in wanted(record.experiment):
            for panel in DRAW[name](record):
                for path, content in (
                    (place / f"{panel.name}.pdf", panel.pdf()),
                    (place / f"{panel.name}.svg", panel.svg().encode()),
                ):
                    write_atomic(path, content)
                    files.append(path)
    return files
