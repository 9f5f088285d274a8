"""CPU and bytes per node-round as the swarm grows: 8, 16, 32, 64 nodes. They should stay flat."""

from __future__ import annotations

import sys

from benchmarks import swarms
from benchmarks.report import show


def main() -> None:
    sizes = [int(n) for n in sys.argv[1:]] or [8, 16, 32, 64]
    rows = []
    for nodes in sizes:
        got = swarms.run(
            nodes,
            rounds=10,
            policy={"name": "facade", "warmup": 2, "all_reduce": False},
            task={"name": swarms.LENET, "samples": 200, "test": 20},
            eval={"every": 10},
            round={"patience": 60.0},
        )
        moved = sum(n.bytes_sent for n in got.outcome.nodes)
        rows.append(
            {
                "nodes": nodes,
                "CPU ms per node-round": 1000 * got.cpu / got.node_rounds,
                "kB per node-round": moved / got.node_rounds / 1000,
                "seconds": got.outcome.wall_seconds,
            }
        )
        for name in ("CPU ms per node-round", "kB per node-round"):
            rows[-1][f"{name.split()[0]} vs {sizes[0]} nodes"] = rows[-1][name] / rows[0][name]
    show("growth: facade, LeNet, 10 batches of 8, degree 4, without the final all-reduce", rows)


if __name__ == "__main__":
    main()
