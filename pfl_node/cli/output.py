"""How results are printed: a table for people, JSON for programs; both on stdout."""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from shutil import get_terminal_size
from typing import Any


def as_json(value: Mapping[str, Any]) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def as_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row))
    # A pipe has no width; rich would take 80 columns and break lines that grep should find whole.
    Console(width=None if sys.stdout.isatty() else 1000, highlight=False).print(table)


def as_tables(columns: Sequence[str], rows: Sequence[Sequence[str]], keep: int = 1) -> None:
    """A table too wide for the terminal as several, one below the other; each has the first `keep` columns."""
    width = get_terminal_size().columns if sys.stdout.isatty() else None
    for number, block in enumerate(in_blocks([columns, *rows], width, keep)):
        if number:
            print()
        as_table(block[0], block[1:])


def in_blocks(rows: Sequence[Sequence[str]], width: int | None, keep: int) -> Iterator[list[list[str]]]:
    """So many columns at a time as there is room for; None: there is always room."""
    wide = [max(map(len, column)) + 2 for column in zip(*rows, strict=True)]
    begin = keep
    while begin < len(wide):
        end, room = begin + 1, (width or sys.maxsize) + 2 - sum(wide[:keep]) - wide[begin]
        while end < len(wide) and wide[end] <= room:
            room -= wide[end]
            end += 1
        yield [[*row[:keep], *row[begin:end]] for row in rows]
        begin = end


def as_facts(facts: Mapping[str, Any]) -> None:
    """One line per fact, names to the left."""
    wide = max(map(len, facts), default=0)
    for name, value in facts.items():
        print(f"{name:<{wide}}  {_cell(value)}".rstrip())


def _cell(value: Any) -> str:
    match value:
        case None | "":
            return "-"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.4g}"
        case list() | tuple() | dict():
            return json.dumps(value, ensure_ascii=False)
    return str(value)
