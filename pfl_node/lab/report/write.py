"""Writes the report into the results directory: results.json, table.md, plots/ and report.html."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from pathlib import Path

from pfl_node.jsonable import plain
from pfl_node.lab.experiment import Experiment
from pfl_node.lab.report import bar_plots, head_plots, line_plots, result_table, style
from pfl_node.lab.report.page import Drawn, page
from pfl_node.lab.report.result import Result
from pfl_node.lab.report.result import facts as facts_of
from pfl_node.lab.report.style import Panel
from pfl_node.store.atomic import write_atomic, writing

RESULTS, TABLE, PAGE = "results.json", "table.md", "report.html"
NO_PLOTS = "there are no plots because matplotlib is not installed: pip install 'pfl-node[lab]'"
DRAW: dict[str, Callable[[Result], Iterable[Panel]]] = {  # the names of `plots.PLOTS`
    "accuracy": line_plots.accuracy,
    "accuracy_over_bytes": line_plots.accuracy_over_bytes,
    "who_from_whom": bar_plots.who_from_whom,
    "settlement": head_plots.settlement,
    "head_losses": head_plots.losses,
    "head_map": head_plots.final_map,
    "fairness": bar_plots.fairness,
    "fair_accuracy": line_plots.fair_accuracy,
    "precision_recall": lambda record: chain(bar_plots.neighbours(record), line_plots.precision(record)),
    "sweep": line_plots.sweep,
}


def write(record: Result) -> str | None:
    """Returns a note about parts that could not be written."""
    place = record.folder.path
    facts = {"command": record.command, "environment": dict(record.facts)}
    times = {f"{what}_seconds": record.seconds(what) for what in ("wall", "cpu")}
    found = plain({**result_table.as_dict(record.results), **facts, **times})
    write_atomic(place / RESULTS, json.dumps(found, indent=1, ensure_ascii=False).encode() + b"\n")
    write_atomic(place / TABLE, result_table.markdown(record.results, dict(facts_of(record))).encode())
    drawings = draw(record, wanted(record.experiment)) if style.is_available() else None
    if drawings and not record.experiment.plots:  # omit empty plots unless the spec asks for them
        drawings = {name: panels for name, panels in drawings.items() if panels}
    write_atomic(place / PAGE, page(record, drawings).encode())
    return NO_PLOTS if drawings is None else None


def wanted(experiment: Experiment) -> list[str]:
    swept = ["sweep"] if len(experiment.points) > 1 else []
    return list(dict.fromkeys([*swept, *(experiment.plots or DRAW)]))


def draw(record: Result, names: Sequence[str]) -> dict[str, list[Drawn]]:
    """Write the plots as PNG and SVG. A plot without data has no panels."""
    place = record.folder.path / "plots"
    _clear(place)
    with style.styled():
        return {name: [_write(place, panel) for panel in DRAW[name](record)] for name in names}


def _write(place: Path, panel: Panel) -> Drawn:
    text = panel.svg()
    write_atomic(place / f"{panel.name}.svg", text.encode())
    write_atomic(place / f"{panel.name}.png", panel.png())
    return Drawn(panel.name, panel.title, style.inline(text, panel.name, panel.title))


def _clear(place: Path) -> None:
    """Remove the plots of an earlier report, which may have had other names."""
    with writing(place):
        place.mkdir(exist_ok=True)
        for old in (*place.glob("*.svg"), *place.glob("*.png")):
            old.unlink()
