"""docs/results.md from the records: which claims hold at a glance, then each table with the paper's beside it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pfl_node.lab import spec
from pfl_node.lab.publish.records import Record, RecordedClaim, RecordedFigure, RecordedRow
from pfl_node.lab.report import phrases
from pfl_node.lab.report.result_table import TableCell, markdown_table
from pfl_node.lab.results import ClaimVerdict, Estimate
from pfl_node.lab.spec_schema import Spec

OWN = "no paper"  # how the `paper` of our own experiments begins
CERTAIN, LIKELY, NOT, OPEN = "holds", "holds on average", "does not hold", "not measured"
INTRO = """\
<!-- Made by `pfl-node lab publish` from docs/records: change those, not this page. -->

# Results

Our results beside the papers' figures. The lab ([lab.md](lab.md)) simulated everything here on real
data. A figure is our mean ± half of its 95 % confidence interval (Student's t over the seeds); in
parentheses the paper's figure and ours minus the paper's. One seed has no interval.

A claim is an order that a paper's table shows. It **holds** if the 95 % interval of the difference,
seed by seed, lies at or above what is claimed; it **holds on average** if only the mean does (or
there is one seed); otherwise it **does not hold**. A difference between two of our runs says
nothing about sizes that were not run.

`pfl-node lab verify docs/records/NAME.json DIR` compares the journals of a rerun in DIR with the
digests of a record.
"""


def judgement(found: ClaimVerdict) -> str:
    estimate = found.estimate
    if estimate is None:
        return OPEN
    if estimate.mean < found.claim.by:
        return NOT
    half = estimate.half_width
    return CERTAIN if half is not None and estimate.mean - half >= found.claim.by else LIKELY


def page(records: Sequence[Record], appendices: Sequence[str] = ()) -> str:
    parts = [INTRO, "## At a glance", _glance(records), *map(_section, records)]
    if absent := list(_not_run(records)):
        rows = [("experiment", "paper", "nodes × rounds × runs"), *absent]
        parts += ["## Not run", markdown_table(rows, words_first=3)]
    return "\n\n".join(part.strip() for part in (*parts, *appendices)) + "\n"


# -- at a glance -----------------------------------------------------------------------------------------------


def _glance(records: Sequence[Record]) -> str:
    heads = ("experiment", "paper", "seeds", "size", CERTAIN, LIKELY, NOT, "not run")
    rows: list[Sequence[str]] = [heads]
    for record in records:
        counted = Counter(judgement(claim.verdict) for claim in record.claims)
        rows.append(
            (
                f"[{record.name}](#{anchor(record.name)})",
                record.paper,
                str(len(_seeds(record))),
                _size(record.rows),
                *(str(counted[kind]) for kind in (CERTAIN, LIKELY, NOT, OPEN)),
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


def _not_run(records: Sequence[Record]) -> Iterator[tuple[str, str, str]]:
    done = {record.experiment for record in records}
    for name, found in _papers():
        if name not in done:
            cells = spec.load(name, "paper").cells
            most = max(cells, key=lambda cell: cell.nodes * (cell.settings.rounds or 1))
            yield f"`{name}`", found.paper, f"{most.nodes} × {most.settings.rounds:,} × {len(cells)}"


def _seeds(record: Record) -> list[int]:
    """That at least one run has finished."""
    return sorted({seed for row in record.rows for figure in row.figures.values() for seed in figure.values})


def _size(rows: Sequence[RecordedRow]) -> str:
    sizes = [text for row in rows for text in row.differences if text.endswith((" nodes", " rounds"))]
    if not any(row.differences for row in rows):
        return "the paper's"
    other = any(len(row.differences) > len(set(row.differences) & set(sizes)) for row in rows)
    return "; ".join([*dict.fromkeys(sizes), *(["other settings"] if other else [])])


# -- one experiment --------------------------------------------------------------------------------------------


def anchor(heading: str) -> str:
    """As GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _section(record: Record) -> str:
    digest = record.digest
    how = [
        f"Commit {', '.join(map(_commit, record.commits))}",
        _seed_text(record),
        f"{phrases.duration(record.cpu_seconds)} of CPU time" if record.cpu_seconds else "",
        f"{len(record.journals)} journals, digest `{digest[:16]}`" if digest else "the journals were not kept",
    ]
    parts = [
        f"## {record.name}",
        wrap(f"{record.title}. {record.paper}."),
        f"```\n{record.command}\n```",
        wrap("; ".join(filter(None, how)) + "."),
        _table(record),
        "\n".join(wrap(f"- {note}") for note in record.notes),
    ]
    if record.missing:
        parts.append(wrap(f"Not finished: {', '.join(record.missing)}."))
    if record.claims:
        parts.append("\n".join(_claim(claim) for claim in record.claims))
    return "\n\n".join(filter(None, parts))


def _commit(commit: str) -> str:
    return commit[:12] + (" with uncommitted changes" if commit.endswith("+") else "")


def _seed_text(record: Record) -> str:
    seeds = _seeds(record)
    return f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {', '.join(map(str, seeds))}"


def _table(record: Record) -> str:
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
    return wrap(f"- **{judgement(claim.verdict)}**: {phrases.verdict(claim.verdict)}")


def wrap(text: str, width: int = 100) -> str:
    from textwrap import fill

    return fill(text, width, subsequent_indent="  " if text.startswith("- ") else "", break_on_hyphens=False)


def appendices(folder: Path) -> list[str]:
    """Sections that are written by hand, each with its own commands."""
    return [path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.md"))]


def summary(records: Sequence[Record]) -> Mapping[str, int]:
    """Of all claims."""
    return Counter(judgement(claim.verdict) for record in records for claim in record.claims)
