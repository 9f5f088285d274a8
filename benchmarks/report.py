"""Prints a benchmark's table with its command and saves it as JSON."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"


def show(name: str, rows: Sequence[dict[str, Any]], notes: Sequence[str] = (), part: str = "") -> None:
    """`part` names one of several tables of a benchmark."""
    console = Console(width=max(Console().width, 140))
    table = Table(title=name, title_justify="left")
    for column in rows[0]:
        table.add_column(column, justify="right" if isinstance(rows[0][column], (int, float)) else "left")
    for row in rows:
        table.add_row(*(f"{v:,.3g}" if isinstance(v, float) else str(v) for v in row.values()))
    console.print(table)
    for note in notes:
        console.print(note, highlight=False)
    module = Path(sys.argv[0]).stem
    command = " ".join(["python -m", f"benchmarks.{module}", *sys.argv[1:]])
    console.print(f"command: {command}   machine: {os.cpu_count()} cores, {platform.machine()}", highlight=False)
    RESULTS.mkdir(exist_ok=True)
    data = {"name": name, "command": command, "rows": list(rows), "notes": list(notes)}
    (RESULTS / f"{'_'.join(filter(None, (module, part)))}.json").write_text(json.dumps(data, indent=1) + "\n")
