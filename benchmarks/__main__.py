"""`python -m benchmarks` runs all benchmarks, one after the other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PARTS = {"__init__", "__main__", "bare", "parts", "report", "students", "swarms", "tasks"}


def main() -> int:
    names = sorted(p.stem for p in Path(__file__).parent.glob("*.py") if p.stem not in PARTS)
    return max(subprocess.run([sys.executable, "-m", f"benchmarks.{n}"], check=False).returncode for n in names)


if __name__ == "__main__":
    sys.exit(main())
