"""Prints results on stdout, as tables for people or as JSON for programs, and progress on stderr."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from shutil import get_terminal_size
from typing import Any

from pfl_node.printable import printable


def as_json(value: Mapping[str, Any]) -> None:
    say(json.dumps(value, indent=2, ensure_ascii=False))


def say(text: str) -> None:
    """Print lines that contain text of peers or files, with control characters escaped."""
    print("\n".join(map(printable, text.split("\n"))), flush=True)


def as_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row))
    # For a pipe rich assumes 80 columns and would break lines that grep should find whole.
    Console(width=None if sys.stdout.isatty() else 1000, highlight=False).print(table)


def as_tables(columns: Sequence[str], rows: Sequence[Sequence[str]], keep: int = 1) -> None:
    """Splits a table that is too wide for the terminal; each part repeats the first `keep` columns."""
    width = get_terminal_size().columns if sys.stdout.isatty() else None
    for number, block in enumerate(in_blocks([columns, *rows], width, keep)):
        if number:
            print()
        as_table(block[0], block[1:])


def in_blocks(rows: Sequence[Sequence[str]], width: int | None, keep: int) -> Iterator[list[list[str]]]:
    """As many columns per block as fit in `width`; None: no limit."""
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
    wide = max(map(len, facts), default=0)
    for name, value in facts.items():
        say(f"{name:<{wide}}  {_cell(value)}".rstrip())


def _cell(value: Any) -> str:
    match value:
        case None | "":
            return "-"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.4g}"
        case list() | tuple() | dict():
            return printable(json.dumps(value, ensure_ascii=False))
    return printable(str(value))


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int | None], None]]:
    """A bar on stderr, updated with done and total; not shown if stderr is not a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
