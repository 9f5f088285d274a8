"""The style of the plots, and their output. The only module that loads matplotlib, on first use.

A run has the same colour, marker and dash in every plot. The colours are those of Okabe and Ito, which
colour-blind readers can distinguish; markers and dashes are redundant with them.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from importlib.util import find_spec
from textwrap import fill
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

COLUMN, HEIGHT = 3.5, 2.7  # inches: one column of a paper, or the width of a phone
LETTER = 0.055  # inches, the width of a letter in a label
DPI = 220
INK, FAINT, GRID, BACK = "#1f2328", "#59636e", "#d9dee3", "#fffffe"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195", "#6b6b6b")
# The same colours for dark mode.
DARK = ("#4aa8e8", "#ff8a3d", "#2fc99b", "#e09ac2", "#f0b73f", "#8fd0f5", "#b493d6", "#a8adb3")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")
DASHES = ("-", "--", ":")
LINK = r'(?<=href="|..url\()#([\w-]+)'  # a reference within the SVG
THEME = {INK: "var(--ink)", FAINT: "var(--faint)", GRID: "var(--line)", BACK: "none"} | {
    colour: f"var(--c{i})" for i, colour in enumerate(COLOURS)
}
RC: Any = {
    "font.size": 8,
    "figure.titlesize": 8.5,
    "figure.titleweight": "bold",
    "axes.labelsize": 8,
    "legend.fontsize": 7.5,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.facecolor": BACK,
    "figure.facecolor": BACK,
    "savefig.facecolor": BACK,
    "axes.edgecolor": FAINT,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "axes.linewidth": 0.7,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "lines.linewidth": 1.4,
    "lines.markersize": 3.5,
    "legend.frameon": False,
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), INK),
    **dict.fromkeys(("xtick.color", "ytick.color"), FAINT),
    "hatch.linewidth": 0.6,
    "text.parse_math": False,  # a dollar in a label is a dollar
    "pdf.fonttype": 42,  # TrueType, which publishers accept
    "svg.fonttype": "none",  # keep text as text: small and searchable
    "svg.hashsalt": "pfl-node",
}


@dataclass(frozen=True, slots=True)
class Look:
    colour: str
    marker: str
    dash: str


def looks(runs: Sequence[str]) -> dict[str, Look]:
    return {
        run: Look(COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)], DASHES[i // len(COLOURS) % len(DASHES)])
        for i, run in enumerate(runs)
    }


class Panel:
    """A figure with one plot."""

    def __init__(self, name: str, title: str, height: float = HEIGHT) -> None:
        from matplotlib.figure import Figure

        self.name = name  # name of its files
        self.title = title
        self.figure = Figure(figsize=(COLUMN, height), layout="constrained")
        self.figure.suptitle(fill(title, 46), x=0.012, ha="left")  # wrapped
        self.axes: Axes = self.figure.add_subplot()

    def legend_below(self, note: str = "") -> None:
        """Put the legend below the axes, in as many columns as fit, with a note as its title. The figure grows
        with the rows."""
        handles, labels = self.axes.get_legend_handles_labels()
        if not labels:
            return
        columns = max(1, min(len(labels), int(COLUMN / (LETTER * max(map(len, labels)) + 0.5))))
        shown = self.figure.legend(
            handles, labels, loc="outside lower center", ncols=columns, handlelength=2.4, columnspacing=1.2
        )
        rows = -(-len(labels) // columns)
        if note:
            shown.set_title(note)
            shown.get_title().set(color=FAINT, fontsize=7)
        self.figure.set_figheight(self.figure.get_figheight() + 0.16 * (rows - 1) + (0.15 if note else 0))

    def png(self) -> bytes:
        held = io.BytesIO()
        self.figure.savefig(held, format="png", dpi=DPI, metadata={"Title": self.title})
        return held.getvalue()

    def pdf(self) -> bytes:
        """Deterministic: without a date."""
        held = io.BytesIO()
        self.figure.savefig(held, format="pdf", metadata={"Title": self.title, "CreationDate": None})
        return held.getvalue()

    def svg(self) -> str:
        """Deterministic: without a date and with fixed ids."""
        held = io.StringIO()
        self.figure.savefig(held, format="svg", metadata={"Title": self.title, "Date": None})
        return "\n".join(line.rstrip() for line in held.getvalue().splitlines()) + "\n"


def is_available() -> bool:
    return find_spec("matplotlib") is not None


@contextmanager
def styled() -> Iterator[None]:
    import matplotlib

    matplotlib.use("Agg")
    with matplotlib.rc_context(RC):
        yield


def name_ticks(axis: Axis, names: Sequence[str]) -> None:
    places = range(len(names))
    room = COLUMN * 0.8 / max(1, len(names))
    if max(LETTER * len(name) for name in names) + 0.06 < room:
        axis.set_ticks(places, names)
    else:
        axis.set_ticks(places, names, rotation=30, ha="right", rotation_mode="anchor")


def whole_numbers(axis: Axis) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10], integer=True))


def inline(text: str, name: str, title: str) -> str:
    """Prepares an SVG for a page: with the page's colours and unique ids."""
    body = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", text[text.index("<svg") :], flags=re.DOTALL)
    used = set(re.findall(LINK, body))
    body = re.sub(r' id="([^"]*)"', lambda m: f' id="{name}-{m[1]}"' if m[1] in used else "", body)
    body = re.sub(LINK, lambda m: m[0].replace("#", f"#{name}-"), body)
    for colour, variable in THEME.items():
        body = body.replace(colour, variable)
    head, rest = body.split(">", 1)
    head = re.sub(r' (width|height)="[^"]*"', "", head)
    return f'{head} role="img" aria-label="{escape(title)}">{rest}'
