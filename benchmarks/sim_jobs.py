"""Wall time of one simulation with training in one process and in several: `sim --jobs N`. Needs idle cores.

`python -m benchmarks.sim_jobs [JOBS [REPEATS [ROUNDS]]]`
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.report import show
from pfl_node.settings import Settings
from pfl_node.sim import simulate

NODES, ROUNDS, STEPS = 8, 10, 40
POLICIES: dict[str, dict[str, Any]] = {
    "facade": {"name": "facade", "warmup": 1, "all_reduce": False},
    "el": {"name": "el"},
}


def run(policy: dict[str, Any], jobs: int, rounds: int) -> tuple[float, str]:
    """Seconds of a whole run, including the start of the worker processes, and the digest of its journal."""
    settings = Settings.model_validate(
        {
            "policy": policy,
            "task": {"name": "benchmarks.tasks:lenet"},
            "train": {"steps": STEPS},
            "rounds": rounds,
        }
    )
    with tempfile.TemporaryDirectory(prefix="pfl-bench-") as folder:
        start = time.perf_counter()
        simulate(settings, nodes=NODES, out=Path(folder), jobs=jobs)
        seconds = time.perf_counter() - start
        return seconds, hashlib.sha256((Path(folder) / "journal.jsonl").read_bytes()).hexdigest()


def measure(policy: str, jobs: int, repeats: int, rounds: int) -> dict[str, Any]:
    """Alternate between one process and several, so that noise of the machine affects both alike."""
    chosen = POLICIES[policy]
    pairs = [(run(chosen, 1, rounds), run(chosen, jobs, rounds)) for _ in range(repeats)]
    ratios = [one / many for (one, _), (many, _) in pairs]
    return {
        "policy": policy,
        "s, --jobs 1": median(one for (one, _), _ in pairs),
        f"s, --jobs {jobs}": median(many for _, (many, _) in pairs),
        "speed-up": median(ratios),
        "spread": f"{min(ratios):.2f}-{max(ratios):.2f}",
        "same journal": str(len({digest for pair in pairs for _, digest in pair}) == 1),
    }


def main() -> None:
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    repeats = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else ROUNDS
    rows = [measure(policy, jobs, repeats, rounds) for policy in POLICIES]
    notes = [
        f"{NODES} nodes x {rounds} rounds of {STEPS} batches of 8, FACADE's LeNet; the workers' start is included",
        "aim: a speed-up of 1.8 on two idle cores",
    ]
    show("one simulation in several processes", rows, notes)


if __name__ == "__main__":
    main()
