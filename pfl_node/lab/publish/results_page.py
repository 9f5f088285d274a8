"""docs/results.md from the records: which claims hold at a glance, then each table with the paper's beside it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from pfl_node.lab.measures import MEASURES
from pfl_node.lab.publish.at_a_glance import by_experiment, by_paper, is_size, plain_size
from pfl_node.lab.publish.full_scale import not_run
from pfl_node.lab.publish.paper_groups import OURS, group_of, order
from pfl_node.lab.publish.pivot_table import pivot_tables, suits
from pfl_node.lab.publish.records import RecordedClaim, RecordedFigure, RecordedRow, ResultRecord, seeds_of
from pfl_node.lab.publish.standings import Standing, mean_ranks, standings, times_tied
from pfl_node.lab.report import phrases
from pfl_node.lab.report.result_table import TableCell, markdown_table
from pfl_node.lab.results import Estimate

INTRO = """\
<!-- Made by `pfl-node lab publish` from docs/records: change those, not this page. -->

# Results

Our results beside the papers' figures. The lab ([lab.md](lab.md)) simulated everything here on real
data. A figure is our mean ± half of its 95 % confidence interval (Student's t over the seeds); one
seed has no interval. In parentheses is the paper's figure and, if the settings are the paper's,
ours minus the paper's. A number in the column `differs` is that of a line below the table: how the
run differs from the spec's paper scale. [lab.md](lab.md#measures) says what each metric means. DATA
in a command is a directory with the [data sets](lab.md#data-sets).

A claim is an order that a paper's table or text states; one of ours is marked. It **holds** if the
95 % interval of the difference, seed by seed, meets it, is **contradicted** if the whole interval
is on the other side, and is **undecided** otherwise. Nearly all sizes are smaller than the papers',
as each table says: a claim that holds or fails at a small size may do otherwise at the paper's.

`pfl-node lab verify docs/records/NAME.json DIR` compares the journals of a rerun in DIR with the
digests of a record. They are equal at the same commit with the same package versions, on x86-64
processors with AVX2 (of another vendor, a convolution may differ in the [last
bit](lab.md#result-files)), or where a processor is named, on that kind only.
"""

TIED = """Runs that cannot be told from the best: the 95 % interval of the difference over the seeds contains zero.
With three seeds that interval is wide, so a tie is not evidence that two runs are equal."""

PIVOT = """Every run has {size}. Bold: the best mean at a point, and the means that
cannot be told from it. Costs are means over the points."""

COST = """The CPU time is an estimate from that of a node and round in the largest record with the same model;
larger data sets cost more. `lab show NAME --scale paper` lists the runs."""


def page(records: Sequence[ResultRecord], appendices: Sequence[str] = ()) -> str:
    ordered = sorted(records, key=lambda record: (order(group_of(record)), record.name))
    parts = [INTRO, "## At a glance", by_paper(ordered), by_experiment(ordered)]
    for group, members in groupby(ordered, group_of):
        parts += [f"## {group}", *map(_section, members)]
    if absent := not_run(ordered):
        parts += ["## Not run at the paper's full scale", wrap(COST), absent]
    return "\n\n".join(part.strip() for part in (*parts, *appendices)) + "\n"


# -- one experiment --------------------------------------------------------------------------------------------


def _section(record: ResultRecord) -> str:
    parts = [
        f"### {record.name}",
        wrap(f"{_sentence(record.title)} {_sentence(phrases.capital(record.paper))} {_setup(record)}".rstrip()),
        f"```\n{record.command}\n```",
        wrap(_made(record)),
        *_tables(record),
        _standings(record),
        "\n".join(wrap(f"- {note}") for note in record.notes),
    ]
    if record.missing:
        runs = Counter(folder.partition("/")[0] for folder in record.missing)
        missing = [f"{run} ({phrases.plural(n, 'run')})" for run, n in runs.items()]
        parts.append(wrap(f"Not finished: {', '.join(missing)}."))
    if record.claims:
        parts.append(_claims(record))
    return "\n\n".join(filter(None, parts))


def _sentence(text: str) -> str:
    return text if text.endswith("?") else f"{text}."


def _setup(record: ResultRecord) -> str:
    """A link to the spec, which lists the setup and its deviations from the paper."""
    if f" run {record.experiment} " in record.command:
        return f"[Setup and deviations](../pfl_node/lab/specs/{record.experiment}.toml)."
    file = f"docs/results/{record.experiment}.toml"
    return f"[Setup and deviations](results/{record.experiment}.toml)." if file in record.command else ""


def _made(record: ResultRecord) -> str:
    digest, processor = record.digest, record.versions.get("processor")
    how = [
        f"Commit {', '.join(map(_commit, record.commits))}" + (f" on {processor}" if processor else ""),
        _seed_text(record),
        f"{phrases.duration(record.cpu_seconds)} of CPU time" if record.cpu_seconds else "",
        f"{len(record.journals)} journals, digest `{digest[:16]}`" if digest else "the journals were not kept",
    ]
    return "; ".join(filter(None, how)) + "."


def _commit(commit: str) -> str:
    return commit[:12] + (" with uncommitted changes" if commit.endswith("+") else "")


def _seed_text(record: ResultRecord) -> str:
    seeds = seeds_of(record)
    return f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {', '.join(map(str, seeds))}"


# -- tables ----------------------------------------------------------------------------------------------------


def _tables(record: ResultRecord) -> list[str]:
    common = [text for text in record.rows[0].differences if all(text in row.differences for row in record.rows)]
    parts = [_all_differ(record, common)]
    if suits(record):
        size = PIVOT.format(size=plain_size(record.rows[0]).replace(", ", " and "))
        tables = (f"{phrases.capital(heading)}:\n\n{table}" for heading, table in pivot_tables(record))
        return [*parts, wrap(size), *tables]
    words = [("run", [row.run for row in record.rows]), ("at", [row.point for row in record.rows])]
    figures = [
        (phrases.heading(metric), [_figure(metric, row.figures.get(metric), row) for row in record.rows])
        for metric in record.metrics
    ]
    seeds = [str(max((len(figure.values) for figure in row.figures.values()), default=0)) for row in record.rows]
    counted = [("seeds", seeds)] if len(set(seeds)) > 1 else []
    texts = [_differences(row, common, record) for row in record.rows]
    numbers = {text: str(n) for n, text in enumerate(dict.fromkeys(filter(None, texts)), start=1)}
    others = [("differs", [numbers.get(text, "") for text in texts])]
    columns = [*filter(_has_content, [*words, *figures]), *counted, *filter(_has_content, others)]
    rows = list(zip(*([heading, *cells] for heading, cells in columns), strict=True))
    table = markdown_table(rows, words_first=len([*filter(_has_content, words)]))
    return [*parts, table, "\n".join(wrap(f"{n}. {text}") for text, n in numbers.items())]


def _has_content(column: tuple[str, Sequence[str]]) -> bool:
    return any(cell not in ("", phrases.NOTHING) for cell in column[1])


def _all_differ(record: ResultRecord, common: Sequence[str]) -> str:
    """The differences from the paper's scale that all rows share."""
    shown = sorted(common, key=lambda text: not is_size(text))
    return wrap(f"All rows: {'; '.join(shown)}.") if shown and group_of(record) != OURS else ""


def _differences(row: RecordedRow, common: Sequence[str], record: ResultRecord) -> str:
    own = [text for text in row.differences if text not in common]
    sizes = {plain_size(other) for other in record.rows}
    size = [plain_size(row)] if group_of(record) == OURS and len(sizes) > 1 else []
    return "; ".join([*size, *own])


def _figure(metric: str, figure: RecordedFigure | None, row: RecordedRow) -> str:
    if figure is None:
        return phrases.NOTHING
    seeds = max(len(other.values) for other in row.figures.values())
    cell = TableCell(metric, Estimate.of(figure.values.values()), figure.paper, seeds)
    if row.differences and figure.paper is not None:  # a difference would compare unlike sizes
        return f"{cell.figure} ({phrases.number(metric, figure.paper)})"
    return str(cell)


def _standings(record: ResultRecord) -> str:
    """The standings of an experiment of our own, which compares runs instead of claims of a paper."""
    metric = record.metrics[0]
    if group_of(record) != OURS or not (found := standings(record, metric)):
        return ""

    def named(s: Standing) -> str:
        return f"{s.run} ({phrases.number(metric, s.mean)})"

    best_is = "highest" if MEASURES[metric].better == "higher" else "lowest"
    texts = {}
    for point, (best, *others) in found.items():
        tied = ", ".join(named(s) for s in others if s.tied) or "none"
        texts[point] = f"{named(best)}; tied with it: {tied}"
    heading = f"The {best_is} {phrases.heading(metric)}"
    if list(texts) == [""]:
        return "\n\n".join((wrap(TIED), wrap(f"{heading}: {texts['']}.")))
    items = "\n".join(wrap(f"- {point}: {text}") for point, text in texts.items())
    counts = ", ".join(f"{run} {n}" for run, n in times_tied(found))
    ranks = ", ".join(f"{run} {rank:.1f}" for run, rank in mean_ranks(found))
    summary = f"Best or tied at how many of the {len(found)} points: {counts}."
    summary += f" Mean rank by {MEASURES[metric].title}: {ranks}."
    return "\n\n".join((wrap(TIED), f"{heading}, and the runs tied with it:", items, wrap(summary)))


# -- claims ----------------------------------------------------------------------------------------------------


def _claims(record: ResultRecord) -> str:
    """A table of the claims, with the paper's difference beside ours."""
    rows: list[Sequence[str]] = [("claim", "paper", "ours", "seeds as claimed", "verdict")]
    rows += [_claim(record, claim) for claim in record.claims]
    columns = [column for column in zip(*rows, strict=True) if _has_content((column[0], column[1:]))]
    return markdown_table(list(zip(*columns, strict=True)))


def _claim(record: ResultRecord, claim: RecordedClaim) -> Sequence[str]:
    found = claim.verdict
    mark = " (ours)" if claim.claim.ours else ""
    seeds = len(claim.differences)
    counted = f"{found.holding} of {seeds}" if seeds else phrases.NOTHING
    ours = phrases.difference(found)
    return (
        phrases.statement(found) + mark,
        _papers_difference(record, claim),
        f"{ours}{phrases.gap(claim.claim.metric)}" if seeds else ours,
        counted,
        phrases.judgement(found),
    )


def _papers_difference(record: ResultRecord, claim: RecordedClaim) -> str:
    wanted = claim.claim
    figures = {row.run: row.figures.get(wanted.metric) for row in record.rows if row.point == claim.point}
    higher, lower = (figures.get(run) for run in (wanted.higher, wanted.lower))
    if higher is None or lower is None or higher.paper is None or lower.paper is None:
        return phrases.NOTHING
    return phrases.signed(wanted.metric, higher.paper - lower.paper)


# -- text ------------------------------------------------------------------------------------------------------


def wrap(text: str, width: int = 100) -> str:
    """The lines of an item of a list are indented."""
    from textwrap import fill

    marker = re.match(r"- |\d+\. ", text)
    return fill(text, width, subsequent_indent=" " * len(marker[0]) if marker else "", break_on_hyphens=False)


def appendices(folder: Path) -> list[str]:
    """Sections that are written by hand, each with its own commands."""
    return [path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.md"))]
