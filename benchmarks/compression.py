"""Accuracy against bytes with `wire.compress`, in the simulator: fp32 against partial int8 messages.

    python -m benchmarks.compression [SEEDS [POLICY,... [DATA]]]

Digits; CIFAR-10, if DATA is its directory. Bytes are those of the payloads; a message also has a header of about
150 bytes.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Swarm:
    task: dict[str, Any]
    train: dict[str, Any]
    sizes: tuple[int, ...]
    rounds: int
    wires: tuple[str, ...]


DIGITS = Swarm({"name": "digits"}, {}, (10, 10), 40, tuple(WIRES))


def cifar10(root: str) -> Swarm:
    task = {"name": "cifar10", "model": "facade_lenet", "val": 100, "tests": 1000, "root": root}
    train = {"optimizer": "sgd", "lr": 0.05, "batch": 8, "steps": 10}
    return Swarm(task, train, (6, 2), 60, ("fp32", "top:0.3, int8, zstd", "fragments:16/6, int8, zstd"))


def run(swarm: Swarm, policy: str, wire: dict[str, Any], seed: int) -> tuple[float, int]:
    settings = {
        "rounds": swarm.rounds,
        "seed": seed,
        "device": "cpu",
        "policy": {"name": policy, **POLICIES[policy]},
        "task": {**swarm.task, "sizes": swarm.sizes},
        "train": swarm.train,
        "eval": {"every": swarm.rounds},
        "wire": wire,
    }
    summary = simulate(Settings.model_validate(settings), nodes=sum(swarm.sizes))
    assert summary.accuracy is not None
    return 100 * summary.accuracy, summary.bytes_sent


def rows(swarm: Swarm, policy: str, seeds: int) -> list[dict[str, Any]]:
    found, base = [], list[tuple[float, int]]()
    for name in swarm.wires:
        runs = [run(swarm, policy, WIRES[name], seed) for seed in range(1, seeds + 1)]
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
    swarm = cifar10(sys.argv[3]) if len(sys.argv) > 3 else DIGITS
    sizes = ":".join(map(str, swarm.sizes))
    note = f"{swarm.task['name']}, {seeds} seeds, clusters {sizes}, {swarm.rounds} rounds; ± standard deviation"
    show("Accuracy against bytes", [row for name in names for row in rows(swarm, name, seeds)], [note])


if __name__ == "__main__":
    main()
