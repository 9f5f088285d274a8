"""docs/results.md from the records: which claims hold at a glance, then each table with the paper's beside it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pfl_node.lab import spec
from pfl_node.lab.experiment import Cell
from pfl_node.lab.publish.pivot_table import pivot_tables, suits
from pfl_node.lab.publish.records import RecordedClaim, RecordedFigure, RecordedRow, ResultRecord
from pfl_node.lab.publish.standings import Standing, standings, times_tied
from pfl_node.lab.report import phrases
from pfl_node.lab.report.result_table import TableCell, markdown_table
from pfl_node.lab.results import Estimate
from pfl_node.lab.spec_schema import Spec

OWN = "no paper"  # how the `paper` of our own experiments begins
INTRO = """\
<!-- Made by `pfl-node lab publish` from docs/records: change those, not this page. -->

# Results

Our results beside the papers' figures. The lab ([lab.md](lab.md)) simulated everything here on real
data. A figure is our mean ± half of its 95 % confidence interval (Student's t over the seeds); in
parentheses the paper's figure and ours minus the paper's. One seed has no interval.

A claim is an order that a paper's table shows, or, without a paper, one that we expected. It
**holds** if the 95 % interval of the difference, seed by seed, lies at or above the claimed margin
(above zero, if there is none); it **holds on average** if only the mean does (or there is one
seed); otherwise it **does not hold**. A difference between two of our runs says nothing about sizes
that were not run.

`pfl-node lab verify docs/records/NAME.json DIR` compares the journals of a rerun in DIR with the
digests of a record. They are equal with the same versions on the same kind of processor.
"""

TIED = """Runs that cannot be told from the best: the 95 % interval of the difference over the seeds contains zero.
With three seeds that interval is wide, so a tie is not evidence that two runs are equal."""

PIVOT = """Every run has {nodes} nodes and {rounds} rounds. Bold: the highest mean at a point, and the means that
cannot be told from it. Costs are means over the points."""

COST = """The CPU time is an estimate from that of a node and round at the quick scale, where it was run; larger
models and data sets of the paper's scale cost more."""


def page(records: Sequence[ResultRecord], appendices: Sequence[str] = ()) -> str:
    parts = [INTRO, "## At a glance", _glance(records), *map(_section, records)]
    if absent := list(_not_run(records)):
        rows = [("experiment", "paper", "nodes × rounds × runs", "CPU time"), *absent]
        parts += ["## Not run at the paper's scale", wrap(COST), markdown_table(rows, words_first=2)]
    return "\n\n".join(part.strip() for part in (*parts, *appendices)) + "\n"


# -- at a glance -----------------------------------------------------------------------------------------------


def _glance(records: Sequence[ResultRecord]) -> str:
    heads = ("experiment", "paper", "seeds", "size", *phrases.JUDGEMENTS[:-1], "not run")
    rows: list[Sequence[str]] = [heads]
    for record in records:
        counted = Counter(phrases.judgement(claim.verdict) for claim in record.claims)
        rows.append(
            (
                f"[{record.name}](#{anchor(record.name)})",
                record.paper,
                str(len(_seeds(record))),
                _size(record.rows),
                *(str(counted[kind]) for kind in phrases.JUDGEMENTS),
            )
        )
    done = {record.experiment for record in records}
    for name, found in _papers():
        if name not in done:
            claims = sum(claim.only != "quick" for claim in found.claim)
            rows.append((name, found.paper, "0", "–", "0", "0", "0", str(claims)))
    return markdown_table(rows, words_first=2)


def _papers() -> Iterator[tuple[str, Spec]]:
    for name in spec.shipped():
        found = spec.parse(*spec.read(name))
        if not found.paper.startswith(OWN):
            yield name, found


def _not_run(records: Sequence[ResultRecord]) -> Iterator[tuple[str, str, str, str]]:
    done = {record.experiment for record in records if record.scale == "paper"}
    quick = {record.experiment: record for record in records if record.scale == "quick"}
    for name, found in _papers():
        if name not in done:
            cells = spec.load(name, "paper").cells
            most = max(cells, key=lambda cell: cell.nodes * (cell.settings.rounds or 1))
            size = f"{most.nodes} × {most.settings.rounds:,} × {len(cells)}"
            yield f"`{name}`", found.paper, size, _cost(quick.get(name), cells)


def _cost(quick: ResultRecord | None, cells: Sequence[Cell]) -> str:
    """An estimate from the CPU time of a node and round at the quick scale."""
    if quick is None or not quick.cpu_seconds:
        return phrases.NOTHING
    per_run = [max((len(f.values) for f in row.figures.values()), default=0) for row in quick.rows]
    counted = sum(row.nodes * (row.rounds or 1) * n for row, n in zip(quick.rows, per_run, strict=True))
    planned = sum(cell.nodes * (cell.settings.rounds or 1) for cell in cells)
    hours = quick.cpu_seconds / counted * planned / 3600
    return f"{hours:,.0f} h" if hours >= 1 else "below 1 h"


def _seeds(record: ResultRecord) -> list[int]:
    """The seeds with at least one finished run."""
    return sorted({seed for row in record.rows for figure in row.figures.values() for seed in figure.values})


def _size(rows: Sequence[RecordedRow]) -> str:
    sizes = [text for row in rows for text in row.differences if text.endswith((" nodes", " rounds"))]
    if not any(row.differences for row in rows):
        return "the paper's"
    other = any(len(row.differences) > len(set(row.differences) & set(sizes)) for row in rows)
    return "; ".join([*dict.fromkeys(sizes), *(["other settings"] if other else [])])


# -- one experiment --------------------------------------------------------------------------------------------


def anchor(heading: str) -> str:
    """The anchor that GitHub makes for a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _section(record: ResultRecord) -> str:
    digest = record.digest
    how = [
        f"Commit {', '.join(map(_commit, record.commits))}",
        _seed_text(record),
        f"{phrases.duration(record.cpu_seconds)} of CPU time" if record.cpu_seconds else "",
        f"{len(record.journals)} journals, digest `{digest[:16]}`" if digest else "the journals were not kept",
    ]
    parts = [
        f"## {record.name}",
        wrap(f"{record.title}. {phrases.capital(record.paper)}."),
        f"```\n{record.command}\n```",
        wrap("; ".join(filter(None, how)) + "."),
        _table(record),
        _standings(record),
        "\n".join(wrap(f"- {note}") for note in record.notes),
    ]
    if record.missing:
        runs = Counter(folder.partition("/")[0] for folder in record.missing)
        missing = [f"{run} ({phrases.plural(n, 'run')})" for run, n in runs.items()]
        parts.append(wrap(f"Not finished: {', '.join(missing)}."))
    if record.claims:
        parts.append("\n".join(_claim(claim) for claim in record.claims))
    return "\n\n".join(filter(None, parts))


def _commit(commit: str) -> str:
    return commit[:12] + (" with uncommitted changes" if commit.endswith("+") else "")


def _seed_text(record: ResultRecord) -> str:
    seeds = _seeds(record)
    return f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {', '.join(map(str, seeds))}"


def _table(record: ResultRecord) -> str:
    if suits(record):
        size = wrap(PIVOT.format(nodes=record.rows[0].nodes, rounds=record.rows[0].rounds))
        tables = (f"{phrases.capital(heading)}:\n\n{table}" for heading, table in pivot_tables(record))
        return "\n\n".join((size, *tables))
    several = any(row.point for row in record.rows)
    heads = [
        "run",
        *(["at"] if several else []),
        *map(phrases.heading, record.metrics),
        "seeds",
        "size, and what differs",
    ]
    rows = [heads]
    for row in record.rows:
        figures = [_figure(metric, row.figures.get(metric), row) for metric in record.metrics]
        counts = {len(figure.values) for figure in row.figures.values()}
        rows.append(
            [row.run, *([row.point] if several else []), *figures, str(max(counts, default=0)), _differs(row)]
        )
    return markdown_table(rows, words_first=2 if several else 1)


def _standings(record: ResultRecord) -> str:
    """The standings of an experiment of our own, which compares runs instead of claims of a paper."""
    metric = record.metrics[0]
    if not record.paper.startswith(OWN) or not (found := standings(record, metric)):
        return ""

    def named(s: Standing) -> str:
        return f"{s.run} ({phrases.number(metric, s.mean)})"

    heads = ("at", f"highest {phrases.heading(metric)}", "tied with it")
    rows: list[Sequence[str]] = [heads]
    rows += [
        (point, named(best), ", ".join(named(s) for s in others if s.tied) or phrases.NOTHING)
        for point, (best, *others) in found.items()
    ]
    if list(found) == [""]:
        return "\n\n".join((wrap(TIED), markdown_table([row[1:] for row in rows], words_first=2)))
    counts = ", ".join(f"{run} {n}" for run, n in times_tied(found))
    summary = f"Best or tied at how many of the {len(found)} points: {counts}."
    return "\n\n".join((wrap(TIED), markdown_table(rows, words_first=3), wrap(summary)))


def _figure(metric: str, figure: RecordedFigure | None, row: RecordedRow) -> str:
    if figure is None:
        return phrases.NOTHING
    seeds = max(len(other.values) for other in row.figures.values())
    return str(TableCell(metric, Estimate.of(figure.values.values()), figure.paper, seeds))


def _differs(row: RecordedRow) -> str:
    size = f"{row.nodes} nodes, {row.rounds} rounds"
    others = [text for text in row.differences if not text.endswith((" nodes", " rounds"))]
    shown = [text for text in row.differences if text not in others]
    return "; ".join([", ".join(shown) if shown else size, *others])


def _claim(claim: RecordedClaim) -> str:
    return wrap(f"- **{phrases.judgement(claim.verdict)}**: {phrases.verdict(claim.verdict)}")


def wrap(text: str, width: int = 100) -> str:
    from textwrap import fill

    return fill(text, width, subsequent_indent="  " if text.startswith("- ") else "", break_on_hyphens=False)


def appendices(folder: Path) -> list[str]:
    """Sections that are written by hand, each with its own commands."""
    return [path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.md"))]


def summary(records: Sequence[ResultRecord]) -> Mapping[str, int]:
    """The number of claims by judgement."""
    return Counter(phrases.judgement(claim.verdict) for record in records for claim in record.claims)
