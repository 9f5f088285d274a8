"""The papers' claims at a small scale: `digits`, 20 nodes, two rotations, in the simulator.

Are nodes that find their own cluster better than those that train alone or with random peers?
"""

from __future__ import annotations

import sys
from statistics import fmean
from typing import Any

from benchmarks.report import show
from pfl_node.settings import Settings
from pfl_node.sim import simulate
from pfl_node.sim.outcome import Summary

NODES, ROUNDS = 20, 40
GOSSIP = {"name": "gossip", "n_peers": 5}
CASES: list[tuple[str, list[int], dict[str, Any]]] = [
    ("10:10", [10, 10], {"name": "local"}),
    ("10:10", [10, 10], GOSSIP),
    ("10:10", [10, 10], {"name": "pens", "T": 20, "n_peers": 5}),
    ("14:6", [14, 6], {"name": "local"}),
    ("14:6", [14, 6], GOSSIP),
    ("14:6", [14, 6], {"name": "facade"}),
]


def run(policy: dict[str, Any], sizes: list[int], seed: int) -> Summary:
    settings = {
        "policy": policy,
        "task": {"name": "digits", "sizes": sizes},
        "rounds": ROUNDS,
        "seed": seed,
        "eval": {"every": ROUNDS},
    }
    return simulate(Settings.model_validate(settings), nodes=NODES)


def row(clusters: str, policy: dict[str, Any], runs: list[Summary]) -> dict[str, Any]:
    found = [r.neighbour_precision for r in runs if r.neighbour_precision]
    return {
        "clusters": clusters,
        "policy": " ".join([policy["name"], *(f"{k}={v}" for k, v in policy.items() if k != "name")]),
        "accuracy %": _percent([r.accuracy or 0.0 for r in runs]),
        "cluster 0": _percent([r.by_cluster[0] for r in runs]),
        "cluster 1": _percent([r.by_cluster[1] for r in runs]),
        "precision": _percent([f.precision or 0.0 for f in found]),
        "recall": _percent([f.recall or 0.0 for f in found]),
        "settled": f"{sum(bool(r.settled) for r in runs)} of {len(runs)}" if runs[0].heads else "",
    }


def _percent(values: list[float]) -> str:
    if not values:
        return ""
    return f"{100 * fmean(values):.1f} ({100 * min(values):.1f}-{100 * max(values):.1f})"


def main() -> None:
    seeds = range(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
    rows = [row(clusters, policy, [run(policy, sizes, s) for s in seeds]) for clusters, sizes, policy in CASES]
    notes = [f"test accuracy of the personal models, mean (lowest-highest) over seeds {list(seeds)}"]
    show(f"digits: {NODES} nodes, {ROUNDS} rounds, rotations of 0 and 180 degrees", rows, notes)


if __name__ == "__main__":
    main()
