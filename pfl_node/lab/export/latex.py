"""The table of an experiment and its paired tests in LaTeX, for the package booktabs."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pfl_node.lab.experiment import Experiment
from pfl_node.lab.export.paired_tests import PairedTest
from pfl_node.lab.measures import MEASURES
from pfl_node.lab.report import phrases, result_table
from pfl_node.lab.report.result_table import TableCell, TableRow
from pfl_node.lab.results import Results

SPECIAL = {
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{letter: f"${letter}$" for letter in "<>|"},  # other letters in LaTeX's default font encoding
    phrases.MINUS: "$-$",
    "±": r"$\pm$",
    phrases.NOTHING: "--",
}


def escape(text: str) -> str:
    return re.sub("|".join(map(re.escape, SPECIAL)), lambda found: SPECIAL[found[0]], text)


def result(found: Results) -> str:
    """The best mean of a column is bold, without those that some seeds lack; the paper's figures are in
    brackets."""
    experiment = found.experiment
    lines = list(result_table.lines(found, experiment.metrics))
    heads = result_table.columns(experiment)
    words = len(heads) - len(experiment.metrics)
    rows = [[*map(escape, _words(line)), *_figures(line, lines)] for line in lines]
    legend = phrases.legend(found).replace(" and our difference from it", "")  # the table has no room for it
    caption = f"{experiment.title}. {phrases.capital(legend)}."
    return _table(heads, rows, words, caption, _label(experiment))


def _words(line: TableRow) -> list[str]:
    return [line.run, *([line.point] if line.point else [])]


def _figures(line: TableRow, lines: Sequence[TableRow]) -> list[str]:
    """The figures of a line, compared with the other runs at the same point."""
    rivals = [other for other in lines if other.point == line.point]
    texts = []
    for i, cell in enumerate(line.entries):
        text = escape(cell.figure)
        if _is_best(cell, [other.entries[i] for other in rivals]):
            text = f"\\textbf{{{text}}}"
        paper = "" if cell.paper is None else f" ({escape(phrases.number(cell.metric, cell.paper))})"
        texts.append(text + paper)
    return texts


def _is_best(cell: TableCell, rivals: Sequence[TableCell]) -> bool:
    means = [rival.ours.mean for rival in rivals if rival.ours and _has_all_seeds(rival)]
    if cell.ours is None or not _has_all_seeds(cell) or len(means) < 2 or len(set(means)) == 1:
        return False
    return cell.ours.mean == (max if MEASURES[cell.metric].better == "higher" else min)(means)


def _has_all_seeds(cell: TableCell) -> bool:
    """False: some seeds never reached the target, for example, so the mean is of the others."""
    return cell.ours is not None and len(cell.ours.values) == cell.seeds


def tests(found: Results, paired: Sequence[PairedTest]) -> str:
    several = found.experiment.points != ("",)
    heads = ["measure", *(["at"] if several else []), "A", "B", "seeds", "A - B", "p (t)", "p (signs)"]
    rows = []
    for test in paired:
        at = [test.point] if several else []
        figures = [str(test.seeds), phrases.change(test.metric, test.difference)]
        ps = [_p(test.t_holm), _p(test.signs_holm)]
        rows.append([escape(text) for text in (MEASURES[test.metric].title, *at, test.a, test.b, *figures, *ps)])
    caption = (
        f"{found.experiment.title}: differences over the seeds, with half of their 95 % intervals, and p after "
        "Holm's correction over all pairs of a measure: paired t test, and exact permutation of signs."
    )
    return _table(heads, rows, len(heads) - 4, caption, _label(found.experiment) + "-tests")


def _p(value: float | None) -> str:
    return phrases.NOTHING if value is None else f"{value:.3f}" if value >= 0.001 else "< 0.001"


def _protected(row: str) -> str:
    """After the end of a row or a rule, LaTeX takes a bracket or an asterisk for an argument."""
    return "{}" + row if row.startswith(("[", "*")) else row


def _label(experiment: Experiment) -> str:
    return f"tab:{phrases.file_name(experiment.name)}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], words: int, caption: str, label: str) -> str:
    kinds = "l" * words + "r" * (len(heads) - words)
    body = [_protected(" & ".join(row)) + r" \\" for row in rows]
    return "\n".join(
        [
            "% needs \\usepackage{booktabs}",
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{escape(caption)}}}",
            rf"\label{{{label}}}",
            rf"\begin{{tabular}}{{{kinds}}}",
            r"\toprule",
            " & ".join(map(escape, heads)) + r" \\",
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )
