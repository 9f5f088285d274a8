"""The table of an experiment: our figures beside the paper's, as rows, as Markdown and as plain values. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pfl_node.lab.experiment import Cell, Experiment
from pfl_node.lab.measures import MEASURES
from pfl_node.lab.report import words
from pfl_node.lab.results import Estimate, Results


@dataclass(frozen=True, slots=True)
class Entry:
    """One measure of one run."""

    metric: str
    ours: Estimate | None
    paper: float | None

    @property
    def difference(self) -> float | None:
        return None if self.ours is None or self.paper is None else self.ours.mean - self.paper

    @property
    def beside(self) -> str:
        """The paper's figure and the difference; empty where the paper has none."""
        if self.paper is None:
            return ""
        gap = "" if self.difference is None else f", {words.signed(self.metric, self.difference)}"
        return f"({words.number(self.metric, self.paper)}{gap})"

    def __str__(self) -> str:
        return f"{words.spread(self.metric, self.ours)} {self.beside}".rstrip()


@dataclass(frozen=True, slots=True)
class Line:
    """A row: a run at a point of the sweep."""

    run: str
    point: str
    entries: tuple[Entry, ...]


def lines(found: Results, metrics: Sequence[str]) -> Iterator[Line]:
    experiment = found.experiment
    for run in experiment.runs:
        for point in experiment.points:
            entries = (Entry(m, found.estimate(run, point, m), found.figure(run, point, m)) for m in metrics)
            yield Line(run, point, tuple(entries))


def columns(experiment: Experiment) -> list[str]:
    """The headings; the second is there when there is a sweep."""
    at = ["at"] if experiment.points != ("",) else []
    return ["run", *at, *(words.heading(metric) for metric in experiment.metrics)]


def texts(line: Line) -> list[str]:
    return [line.run, *([line.point] if line.point else []), *map(str, line.entries)]


def missing(found: Results) -> list[Cell]:
    """The cells that are not done."""
    return [cell for cell in found.experiment.cells if cell not in found.found]


# -- Markdown --------------------------------------------------------------------------------------------------


def markdown(found: Results, command: str) -> str:
    experiment = found.experiment
    heads = columns(experiment)
    marks = ["---" if head in ("run", "at") else "---:" for head in heads]
    rows = [heads, marks, *(texts(line) for line in lines(found, experiment.metrics))]
    blocks = [
        f"# {experiment.title}",
        f"{experiment.paper}. Scale: {experiment.scale}. `{command}`",
        "\n".join(f"| {' | '.join(_cell(text) for text in row)} |" for row in rows),
        f"Figures: {words.legend(found)}.",
    ]
    if absent := missing(found):
        blocks.append("Not finished: " + "; ".join(map(words.cell_title, absent)) + ".")
    if claims := [f"- **{words.judgement(v)}**: {words.verdict(v)}" for v in found.verdicts()]:
        blocks.append("\n".join(["Claims:", "", *claims]))
    return "\n\n".join(blocks) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


# -- JSON ------------------------------------------------------------------------------------------------------


def as_dict(found: Results) -> dict[str, Any]:
    """Everything that was estimated, in the measures' own units: accuracies between 0 and 1."""
    experiment = found.experiment
    asked = tuple(experiment.metrics)
    others = [m for m in MEASURES if m not in asked]
    return {
        "name": experiment.name,
        "title": experiment.title,
        "paper": experiment.paper,
        "scale": experiment.scale,
        "backend": experiment.backend,
        "seeds": list(experiment.seeds),
        "metrics": list(asked),
        "rows": [_row(line, asked) for line in lines(found, [*asked, *others])],
        "claims": [
            {"metric": v.claim.metric, "higher": v.claim.higher, "lower": v.claim.lower, "by": v.claim.by}
            | {"point": v.point, "difference": v.difference, "holds": v.holds}
            for v in found.verdicts()
        ],
        "missing": [cell.folder for cell in missing(found)],
    }


def _row(line: Line, asked: Sequence[str]) -> dict[str, Any]:
    """What was not asked for is there where it was found."""
    known = [e for e in line.entries if e.metric in asked or e.ours is not None]
    return {"run": line.run, "point": line.point, **{e.metric: _entry(e) for e in known}}


def _entry(entry: Entry) -> Mapping[str, Any]:
    ours = entry.ours
    return {
        "mean": ours.mean if ours else None,
        "half_width": ours.half_width if ours else None,
        "values": list(ours.values) if ours else [],
        "paper": entry.paper,
        "difference": entry.difference,
    }
