"""What is wished of a measurement, and what it found beside what was wanted."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """The command line."""

    what: list[str]
    nodes: int
    light: bool
    policy: str
    seconds: float
    every: float
    down: float
    apart: bool
    parted: float
    watch: float
    rounds: int
    delay: float  # ms
    jitter: float  # ms
    loss: float  # %
    seed: int
    set: list[str]
    json: Path | None
    keep: Path | None


@dataclass(slots=True)
class Figures:
    """What was measured beside what was wanted."""

    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(self, what: str, value: float | str, aim: str = "", reached: bool = True) -> None:
        shown = f"{value:.1f}" if isinstance(value, float) else str(value)
        self.rows.append({"what": what, "measured": shown, "aim": aim, "reached": reached})
        print(f"{time.strftime('%H:%M:%S')} {self._line(self.rows[-1])}", flush=True)

    def at_most(self, what: str, value: float, most: float, unit: str = "s") -> None:
        shown: float | str = value if isinstance(value, float) else str(value)
        self.add(f"{what}, {unit}" if unit else what, shown, f"<= {most:g}", value <= most)

    @property
    def reached(self) -> bool:
        return all(row["reached"] for row in self.rows)

    def table(self) -> str:
        return "\n".join(map(self._line, self.rows))

    @staticmethod
    def _line(row: dict[str, Any]) -> str:
        aim = f"   (aim {row['aim']}{'' if row['reached'] else ': NOT REACHED'})" if row["aim"] else ""
        return f"{row['what']}: {row['measured']}{aim}"
