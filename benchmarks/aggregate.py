"""Each aggregation rule against the plain mean: 20 models of 90,000 and of 1,000,000 parameters, in one process.

    python -m benchmarks.aggregate [--quick]

Reports CPU time: runs are interleaved in turns, and the result is the median of the ratios within each turn.
"stacked" is the mean of one array of all models in numpy, without checks.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
import tracemalloc
from collections.abc import Callable
from typing import Any, get_args

os.environ["OMP_NUM_THREADS"] = "1"  # before importing numpy; a node has one core

import numpy as np

from benchmarks.report import show
from pfl_node.aggregate import RuleName, combine
from pfl_node.model import Entry, Layout, Model
from pfl_node.settings import AggregateSettings

MODELS = 20
SIZES = {90_000: 60, 1_000_000: 20}  # parameters of a model: turns
NOTES = (
    "own model and 19 others, byzantine 2; every rule first checks that all models are finite",
    "memory: the peak including the result, in models",
)

Way = Callable[[], object]


def made(numbers: int) -> list[Model]:
    """Correlated models, like those of one swarm."""
    layout, chance = Layout((Entry("w", (numbers,)),), ()), np.random.default_rng(0)
    start = chance.standard_normal(numbers, dtype=np.float32)
    return [Model(layout, start + 0.1 * chance.standard_normal(numbers, dtype=np.float32)) for _ in range(MODELS)]


def ways(models: list[Model]) -> dict[str, Way]:
    mine, *others = models

    def by(rule: str) -> Way:
        settings = AggregateSettings.model_validate({"rule": rule, "byzantine": 2})
        return lambda: combine(settings, mine, others)

    stacked: Way = lambda: np.stack([m.vector for m in models]).mean(axis=0)  # noqa: E731
    return {rule: by(rule) for rule in get_args(RuleName)} | {"stacked": stacked}


def clocked(way: Way) -> float:
    start = time.process_time()
    way()
    return time.process_time() - start


def memory(way: Way) -> int:
    tracemalloc.start()
    way()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def measure(numbers: int, turns: int) -> list[dict[str, Any]]:
    models = made(numbers)
    every = ways(models)
    seconds: dict[str, list[float]] = {name: [] for name in every}
    for _ in range(turns + 1):
        for name, way in every.items():
            seconds[name].append(clocked(way))
    times = {name: values[1:] for name, values in seconds.items()}
    return [
        {
            "numbers": numbers,
            "rule": name,
            "CPU ms": 1e3 * statistics.median(times[name]),
            "to the mean": round(
                statistics.median(a / b for a, b in zip(times[name], times["mean"], strict=True)), 2
            ),
            "memory": round(memory(way) / models[0].nbytes, 1),
        }
        for name, way in every.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="aggregation rules against the plain mean")
    parser.add_argument("--quick", action="store_true", help="fewer turns")
    quick = parser.parse_args().quick
    rows = [row for numbers, turns in SIZES.items() for row in measure(numbers, 5 if quick else turns)]
    show(f"aggregate: {MODELS} models", rows, NOTES)


if __name__ == "__main__":
    main()
