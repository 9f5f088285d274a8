"""How a swarm's output is formatted for people."""

from __future__ import annotations

import sys

from rich.console import Console

from pfl_node.settings import LogSettings, Settings

WIDTH = 100  # columns where stdout is not a terminal


def terminal() -> Console:
    return Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)


def plural(n: int, what: str) -> str:
    return f"{n:,} {what}" if n == 1 else f"{n:,} {what}s"


def size(nbytes: int) -> str:
    return f"{nbytes / 1e6:,.1f} MB" if nbytes >= 1e6 else f"{nbytes / 1e3:,.0f} kB"


def short(name: str) -> str:
    return name.rpartition("/")[2]


def percent(share: float | None) -> str:
    return "unknown" if share is None else f"{100 * share:.1f} %"


def quiet(settings: Settings) -> LogSettings:
    """Warnings only, unless the user sets a level; in the format for this process's stderr, not for a worker's."""
    log = settings.log
    level = log.level if "level" in log.model_fields_set else "warning"
    people = log.format == "console" or (log.format == "auto" and sys.stderr.isatty())
    return log.model_copy(update={"level": level, "format": "console" if people else "json"})
