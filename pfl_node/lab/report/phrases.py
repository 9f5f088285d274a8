"""Formats figures, differences and verdicts, the same for terminal, Markdown and page."""

from __future__ import annotations

import re

from pfl_node.lab.experiment import Cell
from pfl_node.lab.measures import COUNTED, MEASURES, to_paper
from pfl_node.lab.results import ClaimVerdict, Estimate, Results
from pfl_node.learning.tasks import TESTED, mix_of
from pfl_node.sim.outcome import divergence, refusals

MINUS = "\N{MINUS SIGN}"
NOTHING = "–"
HOLDS, UNDECIDED, CONTRADICTED, NOT_MEASURED = "holds", "undecided", "contradicted", "not measured"
ONE_SEED, ONE_SEED_AGAINST = "one seed: as claimed", "one seed: not as claimed"
AGAINST = (CONTRADICTED, ONE_SEED_AGAINST)


def digits(metric: str, value: float) -> int:
    size = abs(to_paper(metric, value))
    match MEASURES[metric].unit:
        case "%" | "MB" | "x":
            return 1
        case "rounds":
            return 0
        case "runs":
            return 0 if not size % 1 else 2
        case "models" | "s":
            return 0 if size >= 100 or not size % 1 else 1
    return 4 if size < 10 else 0


def number(metric: str, value: float, places: int | None = None) -> str:
    shown = to_paper(metric, value)
    text = f"{abs(shown):,.{digits(metric, value) if places is None else places}f}"
    return MINUS + text if shown < 0 and float(text.replace(",", "")) else text


def signed(metric: str, value: float, places: int | None = None) -> str:
    text = number(metric, value, places)
    return text if text.startswith(MINUS) else f"+{text}"


def spread(metric: str, estimate: Estimate | None, of: int = 0) -> str:
    """The mean with half of its 95 % interval, and the number of seeds if it is less than `of`; or how many runs
    have it."""
    if estimate is None:
        return NOTHING
    seeds = len(estimate.values)
    if MEASURES[metric].unit == COUNTED:
        return f"{sum(estimate.values):.0f} of {seeds}"
    some = f" [{seeds} of {of} seeds]" if seeds < of else ""
    return number(metric, estimate.mean) + _half(metric, estimate) + some


def change(metric: str, estimate: Estimate, places: int | None = None) -> str:
    if MEASURES[metric].unit == COUNTED:
        return f"{signed(metric, sum(estimate.values))} of {len(estimate.values)}"
    return signed(metric, estimate.mean, places) + _half(metric, estimate, places)


def _half(metric: str, estimate: Estimate, places: int | None = None) -> str:
    half = estimate.half_width
    places = digits(metric, estimate.mean) if places is None else places
    return "" if half is None else f" ± {number(metric, half, places)}"


def heading(metric: str) -> str:
    measure = MEASURES[metric]
    return measure.title if measure.unit in measure.title else f"{measure.title}, {measure.unit}"


def backend(found: Results) -> str:
    if found.experiment.backend == "sim":
        return "simulated, on a virtual clock and network"
    sizes = (
        f"{cell.nodes} nodes in {plural(f.summary['processes'], 'process')}" for cell, f in found.found.items()
    )
    return ", ".join(["real nodes over gRPC", *dict.fromkeys(sizes)])


def legend(found: Results, beside: str = "in brackets") -> str:
    """Explains the figures of a table; `beside` says where the paper's are."""
    experiment = found.experiment
    n = len(experiment.seeds)
    ours = (
        f"our mean ± half of its 95 % confidence interval (Student's t over {n} seeds)"
        if n > 1
        else "our figure for one seed, without a confidence interval"
    )
    ours += ", which is wide for two seeds" if n == 2 else ""
    paper = f"; {beside} the paper's figure and our difference from it" if experiment.figures else ""
    real = f"; {backend(found)}" if experiment.backend != "sim" else ""
    found_mixes = dict.fromkeys(mix_of(cell.settings.task) for cell in experiment.cells)
    mixes = [mix for mix in found_mixes if mix]
    some = ", where labels are skewed" if None in found_mixes else ""
    tested = "; tested on " + ", or ".join(TESTED[mix] for mix in mixes) + some if mixes else ""
    return ours + paper + tested + real


def warnings(found: Results) -> list[str]:
    """Warnings about runs that refused messages or discarded trainings although no fault was injected."""
    lines = []
    for run in found.experiment.runs:
        quiet = [f.summary for c, f in found.found.items() if c.run == run and not _attacked(c)]
        nodes = [node.get("diverged") for summary in quiet for node in summary.get("per_node", ())]
        said = (refusals(*(summary.get("refused", {}) for summary in quiet)), divergence(nodes))
        lines += [f"{run}: {text}" for text in said if text]
    return lines


def _attacked(cell: Cell) -> bool:
    return bool(cell.settings.attack.kind)


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def gap(metric: str) -> str:
    unit = MEASURES[metric].unit
    return " points" if unit == "%" else f" {unit}" if unit else ""


def verdict(found: ClaimVerdict) -> str:
    return f"{statement(found)}: {_outcome(found)}"


def statement(found: ClaimVerdict) -> str:
    claim = found.claim
    at = f" at {found.point}" if found.point else ""
    size = f"{number(claim.metric, abs(claim.by))}{gap(claim.metric)}"
    runs = f"{claim.higher} above {claim.lower}{at}" + (f" by {size} or more" if claim.by > 0 else "")
    if claim.by < 0:
        runs = f"{claim.higher} at most {size} below {claim.lower}{at}"
    measure = MEASURES[claim.metric]
    lower = " (lower is better)" if measure.better == "lower" and not measure.unit else ""
    return f"{measure.title} of {runs}{lower}"


def _outcome(found: ClaimVerdict) -> str:
    if found.estimate is None:
        return "no seed has both runs"
    seeds = len(found.estimate.values)
    counted = f", for {found.holding} of {seeds} seeds" if seeds > 1 else ""
    return f"{difference(found)}{gap(found.claim.metric)}{counted}"


def difference(found: ClaimVerdict) -> str:
    metric, estimate = found.claim.metric, found.estimate
    if estimate is None:
        return NOTHING
    bound = {(True, False): "at least ", (False, True): "at most ", (True, True): "about "}
    if sign := bound.get((found.at_least, found.at_most)):
        return f"{sign}{signed(metric, estimate.mean)}"
    return change(metric, estimate)


def judgement(found: ClaimVerdict) -> str:
    """A claim holds if the whole interval of the difference meets it, and is contradicted if none of it does."""
    if (estimate := found.estimate) is None:
        return NOT_MEASURED
    if (half := estimate.half_width) is None:
        return ONE_SEED if found.holds else ONE_SEED_AGAINST
    if found.claim.met_by(estimate.mean - half) and not found.at_most:
        return HOLDS
    reached = found.claim.met_by(estimate.mean + half) or found.at_least
    return UNDECIDED if reached else CONTRADICTED


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
    return "-".join(filter(None, (re.sub(r"[^a-z0-9.]+", "-", word.lower()).strip("-.") for word in words)))
