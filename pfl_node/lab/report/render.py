"""Draws the plots of a result and keeps them in its folder, as PNG and SVG."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pfl_node.errors import StoreError
from pfl_node.lab.report import bar_plots, line_plots, style
from pfl_node.lab.report.result import Result
from pfl_node.lab.report.style import Panel
from pfl_node.store.atomic import write_atomic

DRAW: dict[str, Callable[[Result], list[Panel]]] = {  # the names of `plots.PLOTS`
    "accuracy": line_plots.accuracy,
    "accuracy_over_bytes": line_plots.accuracy_over_bytes,
    "who_from_whom": bar_plots.who_from_whom,
    "settlement": bar_plots.settlement,
    "fairness": bar_plots.fairness,
    "precision_recall": lambda record: [*bar_plots.neighbours(record), *line_plots.precision(record)],
    "sweep": line_plots.sweep,
}


@dataclass(frozen=True, slots=True)
class Drawn:
    """A panel on disk, and as a part of a page."""

    name: str  # of its files in plots/, without .png and .svg
    title: str
    svg: str


def draw(record: Result, names: Sequence[str]) -> dict[str, list[Drawn]]:
    """One that has nothing to show is an empty list."""
    place = _fresh(record.folder.path / "plots")
    with style.styled():
        return {name: [_keep(place, panel) for panel in DRAW[name](record)] for name in names}


def _keep(place: Path, panel: Panel) -> Drawn:
    text = style.svg(panel)
    write_atomic(place / f"{panel.name}.svg", text.encode())
    write_atomic(place / f"{panel.name}.png", style.png(panel))
    return Drawn(panel.name, panel.title, style.inline(text, panel.name, panel.title))


def _fresh(place: Path) -> Path:
    """Without the plots of a former report, which may have had others."""
    try:
        place.mkdir(exist_ok=True)
        for old in (*place.glob("*.svg"), *place.glob("*.png")):
            old.unlink()
    except OSError as error:
        raise StoreError(f"cannot write {place}: {error.strerror or error}") from error
    return place
