"""Accuracy against bytes with `wire.compress`, in the simulator: fp32 against partial int8 messages.

    python -m benchmarks.compression [SEEDS [POLICY,...]]

Digits; docs/results/compression-cifar10.toml has CIFAR-10. Bytes are those of the payloads; a message also has a
header of about 150 bytes.
"""

from __future__ import annotations

import sys
from statistics import mean, stdev
from typing import Any

from benchmarks.report import show
from pfl_node.settings import Settings
from pfl_node.sim.simulate import simulate

POLICIES: dict[str, dict[str, Any]] = {
    "el": {},
    "dpsgd": {},
    "facade": {},
    "fedavg": {"C": 0.5},
    "pens": {"T": 20, "n_sampled": 5},
}
SMALL = {"encoding": "int8", "zstd": 3}
WIRES: dict[str, dict[str, Any]] = {
    "fp32": {"encoding": "fp32"},
    "int8, zstd": SMALL,
    "top:0.2, int8, zstd": {"compress": "top:0.2", **SMALL},
    "top:0.3, int8, zstd": {"compress": "top:0.3", **SMALL},
    "fragments:16/4, int8, zstd": {"compress": "fragments:16/4", **SMALL},
    "fragments:16/6, int8, zstd": {"compress": "fragments:16/6", **SMALL},
}
SIZES, ROUNDS = (10, 10), 40


def run(policy: str, wire: dict[str, Any], seed: int) -> tuple[float, int]:
    settings = {
        "rounds": ROUNDS,
        "seed": seed,
        "device": "cpu",
        "policy": {"name": policy, **POLICIES[policy]},
        "task": {"name": "digits", "sizes": SIZES},
        "eval": {"every": ROUNDS},
        "wire": wire,
    }
    summary = simulate(Settings.model_validate(settings), nodes=sum(SIZES))
    assert summary.accuracy is not None
    return 100 * summary.accuracy, summary.bytes_sent


def rows(policy: str, seeds: int) -> list[dict[str, Any]]:
    found, base = [], list[tuple[float, int]]()
    for name, wire in WIRES.items():
        runs = [run(policy, wire, seed) for seed in range(1, seeds + 1)]
        base = base or runs
        gaps = [a - b for (a, _), (b, _) in zip(runs, base, strict=True)]
        found.append(
            {
                "policy": policy,
                "wire": name,
                "accuracy, %": round(mean(a for a, _ in runs), 2),
                "against fp32": f"{mean(gaps):+.2f} ± {stdev(gaps) if len(gaps) > 1 else 0:.2f}",
                "MB": round(mean(b for _, b in runs) / 1e6, 2),
                "share of fp32's bytes": round(sum(b for _, b in runs) / sum(b for _, b in base), 3),
            }
        )
        print(found[-1], flush=True)
    return found


def main() -> None:
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    names = sys.argv[2].split(",") if len(sys.argv) > 2 else list(POLICIES)
    note = f"digits, {seeds} seeds, clusters 10:10, {ROUNDS} rounds; ± standard deviation"
    show("Accuracy against bytes", [row for name in names for row in rows(name, seeds)], [note])


if __name__ == "__main__":
    main()
