"""Figures, differences and verdicts in words, the same on a terminal, in Markdown and on the page. Pure."""

from __future__ import annotations

import re

from pfl_node.lab.experiment import Cell
from pfl_node.lab.measures import MEASURES, to_paper
from pfl_node.lab.results import Estimate, Results, Verdict

MINUS = "\N{MINUS SIGN}"


def number(metric: str, value: float) -> str:
    """In the unit that papers print."""
    digits = {"%": 1, "rounds": 0, "s": 0, "MB": 1}.get(MEASURES[metric].unit)
    shown = to_paper(metric, value)
    if digits is None:
        digits = 4 if abs(shown) < 10 and shown % 1 else 0
    text = f"{abs(shown):,.{digits}f}"
    return MINUS + text if shown < 0 and float(text.replace(",", "")) else text


def signed(metric: str, value: float) -> str:
    text = number(metric, value)
    return text if text.startswith(MINUS) else f"+{text}"


def spread(metric: str, estimate: Estimate | None) -> str:
    """The mean and half of its 95 % interval."""
    if estimate is None:
        return "–"
    half = estimate.half_width
    return number(metric, estimate.mean) + ("" if half is None else f" ± {number(metric, half)}")


def change(metric: str, estimate: Estimate) -> str:
    """A difference and half of its 95 % interval."""
    half = estimate.half_width
    return signed(metric, estimate.mean) + ("" if half is None else f" ± {number(metric, half)}")


def heading(metric: str) -> str:
    """The title of a column."""
    measure = MEASURES[metric]
    return f"{measure.title}, {measure.unit}" if measure.unit and measure.unit != "rounds" else measure.title


def backend(found: Results) -> str:
    """In what the runs took place."""
    if found.experiment.backend == "sim":
        return "simulated, on a virtual clock and network"
    sizes = (
        f"{cell.nodes} nodes in {plural(f.summary['processes'], 'process')}" for cell, f in found.found.items()
    )
    return ", ".join(["real nodes over gRPC", *dict.fromkeys(sizes)])


def legend(found: Results) -> str:
    """What the figures of a table are."""
    experiment = found.experiment
    n = len(experiment.seeds)
    ours = f"our mean ± half the 95 % interval over {n} seeds" if n > 1 else "ours, of one seed"
    paper = "; in brackets the paper's figure and how far ours is above it" if experiment.figures else ""
    real = f"; {backend(found)}" if experiment.backend != "sim" else ""
    return ours + paper + real


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def gap(metric: str) -> str:
    """The unit of a difference, with a blank before it."""
    unit = MEASURES[metric].unit
    return " points" if unit == "%" else f" {unit}" if unit else ""


def verdict(found: Verdict) -> str:
    """A claim and what became of it, without the judgement."""
    claim = found.claim
    where = f" at {found.point}" if found.point else ""
    unit = gap(claim.metric)
    by = f" by {number(claim.metric, claim.by)}{unit} or more" if claim.by else ""
    told = "not measured" if found.difference is None else signed(claim.metric, found.difference) + unit
    return f"{MEASURES[claim.metric].title} of {claim.higher} above {claim.lower}{where}{by}: {told}"


def judgement(found: Verdict) -> str:
    if found.difference is None:
        return "not measured"
    return "holds" if found.holds else "does not hold"


def cell_title(cell: Cell) -> str:
    return ", ".join(filter(None, (cell.run, cell.point, f"seed {cell.seed}")))


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def plural(n: int, what: str) -> str:
    return f"{n} {what}" + ("" if n == 1 else "es" if what.endswith("s") else "s")


def file_name(*words: str) -> str:
    """Of a plot, without its kind."""
    return "-".join(filter(None, (re.sub(r"[^a-z0-9.]+", "-", word.lower()).strip("-.") for word in words)))
