"""Collects one row per attack and prints them as a table at the end of the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.processes import Process, processes

ROWS: list[tuple[str, str, str]] = []
HEAD = ("attack", "before", "now")

Figure = Callable[[str, str, object], None]


@pytest.fixture
def figure() -> Figure:
    """`figure(attack, before, now)`; `before` is what the security review measured."""
    return lambda attack, before, now: ROWS.append((attack, before, str(now)))


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Starts processes and ends them with the test."""
    with processes(tmp_path, preloaded=True) as starter:
        yield starter


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not ROWS:
        return
    wide = [max(len(row[column]) for row in (HEAD, *ROWS)) for column in range(3)]
    terminalreporter.section("attacks")
    for row in (HEAD, *ROWS):
        terminalreporter.write_line("  ".join(f"{cell:<{w}}" for cell, w in zip(row, wide, strict=True)).rstrip())
