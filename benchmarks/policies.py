"""Compares all policies with the rankings of the papers at a small scale: `digits` in the simulator, three seeds;
with two clusters of equal size, with a minority, and with few classes at each node.

    python -m benchmarks.policies [SEEDS [everybody] [minority] [skewed]]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.report import show
from pfl_node.lab import comparison_table
from pfl_node.lab.policy_comparison import Entrant, PolicyComparison, compare, enter
from pfl_node.policies import policies_in
from pfl_node.settings import Settings

ROUNDS = 40
FAIR = ("local", "el", "dpsgd", "deprl", "dac", "idca", "facade")
SERVERLESS = ("local", "fedavg", "fedprox")
WEIGHTS = ("w0", "w1", "w2")  # of feded


def settings(**task: Any) -> Settings:
    return Settings.model_validate({"rounds": ROUNDS, "device": "cpu", "task": {"name": "digits", **task}})


def entered(names: Sequence[str], nodes: int) -> list[Entrant]:
    return enter(names, {}, {}, nodes=nodes, rounds=ROUNDS)


def everybody(seeds: int, names: Sequence[str] = ("all",)) -> PolicyComparison:
    """Onoszko et al. 2021, table 1: oracle, pens, random, local, in this order."""
    names = policies_in(",".join(names))
    return compare(settings(sizes=[10, 10]), entered(names, 20), nodes=20, seeds=seeds)


def minority(seeds: int, names: Sequence[str] = FAIR) -> PolicyComparison:
    """Trinca 2024, table 4.2: facade's minority is better off than el's."""
    return compare(settings(sizes=[14, 6]), entered(names, 20), nodes=20, seeds=seeds)


def skewed(seeds: int, names: Sequence[str] = SERVERLESS, weights: Sequence[str] = WEIGHTS) -> PolicyComparison:
    """Eriksson 2022, table 4.1: at Dirichlet(0.1) weights by familiarity with a sample (w2) are better than
    weights by number of samples (w0)."""
    (feded,) = entered(["feded"], 10)
    variants = [replace(feded, title=f"feded {w}", given={"weights": w}) for w in weights]
    task = settings(angles=[0], alpha=0.1, auxiliary=0.5)
    return compare(task, [*entered(names, 10), *variants], nodes=10, seeds=seeds)


TABLES: dict[str, Callable[..., PolicyComparison]] = {
    "everybody": everybody,
    "minority": minority,
    "skewed": skewed,
}


def main() -> None:
    seeds, names = int(sys.argv[1]) if len(sys.argv) > 1 else 3, sys.argv[2:] or list(TABLES)
    for name in names:
        found = TABLES[name](seeds)
        heads = comparison_table.columns(found)
        rows = [dict(zip(heads, comparison_table.cells(found, entrant), strict=True)) for entrant in found.ran]
        task = found.settings.task.options
        notes = [
            f"task: {task}; {comparison_table.legend(found)}",
            *comparison_table.failures(found),
            *comparison_table.knobs(found),
        ]
        show(comparison_table.title(found), rows, notes, part=name)


if __name__ == "__main__":
    main()
