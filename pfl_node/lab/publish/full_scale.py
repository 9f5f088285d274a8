"""The table of experiments that were not run at the full scale of their paper, with their cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

from pfl_node.lab import spec
from pfl_node.lab.experiment import Cell
from pfl_node.lab.publish.at_a_glance import sizes
from pfl_node.lab.publish.paper_groups import shipped
from pfl_node.lab.publish.records import ResultRecord, seeds_of
from pfl_node.lab.report import phrases
from pfl_node.lab.report.result_table import markdown_table

OTHER_MODEL = "task.model = "


def not_run(records: Sequence[ResultRecord]) -> str:
    """Empty: all were run."""
    rows = list(_rows(records))
    heads = ("experiment", "repeats", "nodes × rounds × runs", "recorded instead", "CPU time")
    return markdown_table([heads, *rows], words_first=2) if rows else ""


def _rows(records: Sequence[ResultRecord]) -> Iterator[Sequence[str]]:
    for name, found in shipped():
        kept = [record for record in records if record.experiment == name]
        if not any(is_whole(record) for record in kept):
            cells = _planned(name)
            most = max(cells, key=lambda cell: cell.nodes * (cell.settings.rounds or 1))
            size = f"{most.nodes} × {most.settings.rounds:,} × {len(cells)}"
            first, *more = map(_recorded, kept) if kept else [phrases.NOTHING]
            yield f"`{name}`", found.paper, size, first, _cost(kept, cells)
            yield from (("", "", "", text, "") for text in more)


@cache
def _planned(name: str) -> Sequence[Cell]:
    return spec.load(name, "paper").cells


def is_whole(record: ResultRecord) -> bool:
    """Was it run at the paper's scale, with all its settings?"""
    whole = record.scale == "paper" and not record.missing
    return whole and not any(row.differences for row in record.rows)


def _recorded(record: ResultRecord) -> str:
    return "; ".join([*sizes(record), phrases.plural(len(seeds_of(record)), "seed")])


def _cost(records: Sequence[ResultRecord], cells: Sequence[Cell]) -> str:
    """An estimate from the CPU time of a node and round in the largest record with the same model."""
    same = [
        record
        for record in records
        if record.cpu_seconds
        and not any(text.startswith(OTHER_MODEL) for row in record.rows for text in row.differences)
    ]
    if not same:
        return phrases.NOTHING
    largest = max(same, key=lambda record: record.cpu_seconds)
    per_run = [max((len(f.values) for f in row.figures.values()), default=0) for row in largest.rows]
    counted = sum(row.nodes * (row.rounds or 1) * n for row, n in zip(largest.rows, per_run, strict=True))
    planned = sum(cell.nodes * (cell.settings.rounds or 1) for cell in cells)
    hours = largest.cpu_seconds / counted * planned / 3600
    return f"{hours:,.0f} h" if hours >= 1 else "below 1 h"
