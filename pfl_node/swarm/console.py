"""How a swarm is shown to people: where, and how a share is written."""

from __future__ import annotations

import sys

from rich.console import Console

WIDTH = 100  # columns where there is no terminal to ask


def terminal() -> Console:
    return Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)


def percent(share: float | None) -> str:
    return "unknown" if share is None else f"{100 * share:.1f} %"
