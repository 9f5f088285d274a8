"""The table of an experiment with our figures and the paper's: as rows, Markdown and JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pfl_node.lab.experiment import Cell, Experiment
from pfl_node.lab.measures import MEASURES
from pfl_node.lab.report import phrases
from pfl_node.lab.results import Estimate, Results
from pfl_node.learning.tasks import mix_of


@dataclass(frozen=True, slots=True)
class TableCell:
    metric: str
    ours: Estimate | None
    paper: float | None
    seeds: int = 0  # number of finished seeds
    why_not: str = ""  # the reason if no seed has a value

    @property
    def difference(self) -> float | None:
        return None if self.ours is None or self.paper is None else self.ours.mean - self.paper

    @property
    def figure(self) -> str:
        if self.ours is None and self.why_not:
            return self.why_not
        return phrases.spread(self.metric, self.ours, self.seeds)

    @property
    def beside(self) -> str:
        """The paper's figure and our difference from it; empty: the paper has none."""
        if self.paper is None:
            return ""
        places = phrases.digits(self.metric, self.paper)
        gap = "" if self.difference is None else f", {phrases.signed(self.metric, self.difference, places)}"
        return f"{phrases.number(self.metric, self.paper)}{gap}"

    def __str__(self) -> str:
        return f"{self.figure} ({self.beside})" if self.beside else self.figure


@dataclass(frozen=True, slots=True)
class TableRow:
    run: str
    point: str
    entries: tuple[TableCell, ...]


def lines(found: Results, metrics: Sequence[str]) -> Iterator[TableRow]:
    experiment = found.experiment
    for run in experiment.runs:
        for point in experiment.points:
            yield TableRow(run, point, tuple(_entry_of(found, run, point, metric) for metric in metrics))


def _entry_of(found: Results, run: str, point: str, metric: str) -> TableCell:
    cells = found.cells(run, point)
    why_not = MEASURES[metric].why_not(found.found[cells[0]]) if cells else ""
    return TableCell(
        metric, found.estimate(run, point, metric), found.figure(run, point, metric), len(cells), why_not
    )


def columns(experiment: Experiment) -> list[str]:
    at = ["at"] if experiment.points != ("",) else []
    return ["run", *at, *(phrases.heading(metric) for metric in experiment.metrics)]


def texts(line: TableRow) -> list[str]:
    return [line.run, *([line.point] if line.point else []), *map(str, line.entries)]


def missing(found: Results) -> list[Cell]:
    return [cell for cell in found.experiment.cells if cell not in found.found]


# -- Markdown --------------------------------------------------------------------------------------------------


def markdown(found: Results, facts: Mapping[str, str]) -> str:
    experiment = found.experiment
    rows = [columns(experiment), *(texts(line) for line in lines(found, experiment.metrics))]
    blocks = [
        f"# {experiment.title}",
        f"{experiment.paper}. Scale: {experiment.scale}.",
        markdown_table(rows, words_first=2 if "at" in rows[0] else 1),
        f"Figures: {phrases.legend(found)}.",
    ]
    if absent := missing(found):
        blocks.append("Not finished: " + "; ".join(map(phrases.cell_title, absent)) + ".")
    if refused := phrases.warnings(found):
        blocks.append("\n".join(["Refused messages:", "", *(f"- {line}" for line in refused)]))
    if claims := [f"- **{phrases.judgement(v)}**: {phrases.verdict(v)}" for v in found.verdicts()]:
        blocks.append("\n".join(["Claims:", "", *claims]))
    if facts:
        blocks.append(
            "\n".join(["How it was produced:", "", *(f"- {name}: {text}" for name, text in facts.items())])
        )
    return "\n\n".join(blocks) + "\n"


def markdown_table(rows: Sequence[Sequence[str]], words_first: int = 1) -> str:
    """Padded, so that the source is readable too. The first columns hold words, the others figures."""
    cells = [[text.replace("|", "\\|") for text in row] for row in rows]
    wide = [max(3, *map(len, column)) for column in zip(*cells, strict=True)]
    marks = ["-" * w if i < words_first else "-" * (w - 1) + ":" for i, w in enumerate(wide)]
    shown = [
        [
            text.ljust(w) if i < words_first else text.rjust(w)
            for i, (text, w) in enumerate(zip(row, wide, strict=True))
        ]
        for row in cells
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in (shown[0], marks, *shown[1:]))


# -- JSON ------------------------------------------------------------------------------------------------------


def as_dict(found: Results) -> dict[str, Any]:
    """All estimates, in the units of the measures: accuracies are between 0 and 1."""
    experiment = found.experiment
    requested = tuple(experiment.metrics)
    others = [m for m in MEASURES if m not in requested]
    return {
        "name": experiment.name,
        "title": experiment.title,
        "paper": experiment.paper,
        "scale": experiment.scale,
        "backend": experiment.backend,
        "seeds": list(experiment.seeds),
        "test_mix": sorted({mix for cell in experiment.cells if (mix := mix_of(cell.settings.task))}),
        "metrics": list(requested),
        "rows": [_row(line, requested) for line in lines(found, [*requested, *others])],
        "claims": [
            {"metric": v.claim.metric, "higher": v.claim.higher, "lower": v.claim.lower, "by": v.claim.by}
            | {"point": v.point, "ours": v.claim.ours, "difference": v.difference, "holds": v.holds}
            | {"judgement": phrases.judgement(v)}
            | {"half_width": v.estimate and v.estimate.half_width}
            | {"at_least": v.at_least, "at_most": v.at_most}
            | {"seeds": len(v.estimate.values) if v.estimate else 0, "holding": v.holding}
            for v in found.verdicts()
        ],
        "missing": [cell.folder for cell in missing(found)],
    }


def _row(line: TableRow, requested: Sequence[str]) -> dict[str, Any]:
    """Other measures are included if they are known."""
    known = [e for e in line.entries if e.metric in requested or e.ours is not None]
    return {"run": line.run, "point": line.point, **{e.metric: _entry(e) for e in known}}


def _entry(entry: TableCell) -> Mapping[str, Any]:
    ours = entry.ours
    return {
        "mean": ours.mean if ours else None,
        "half_width": ours.half_width if ours else None,
        "values": list(ours.values) if ours else [],
        "paper": entry.paper,
        "difference": entry.difference,
    }
