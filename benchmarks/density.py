"""Memory and start-up of 50 `digits` nodes in one swarm, against separate daemons scaled to 50."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import swarms
from benchmarks.report import show

GB = 1e9


def daemons(count: int, folder: Path) -> float:
    """PSS in bytes of `count` separate training daemons."""
    words = [
        sys.executable,
        "-m",
        "pfl_node",
        "--policy",
        "gossip",
        "--set",
        "start.wait=60",
        "--set",
        "policy.quiet=2",
    ]
    first = subprocess.Popen(
        [*words, "--data-dir", "n0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=folder, text=True
    )
    assert first.stdout is not None
    address = json.loads(first.stdout.readline())["address"]
    rest: list[subprocess.Popen[Any]] = [
        subprocess.Popen(
            [*words, "--data-dir", f"n{i}", "--peer-seed", address],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=folder,
        )
        for i in range(1, count)
    ]
    try:
        journals = [folder / f"n{i}" / "journal.jsonl" for i in range(count)]
        end = time.monotonic() + 120
        while not all(j.exists() and '"event":"round"' in j.read_text() for j in journals):
            if time.monotonic() > end:
                raise SystemExit("the daemons did not start to train within 120 s")
            time.sleep(0.5)
        return swarms.pss_of([p.pid for p in [first, *rest]])
    finally:
        for process in [first, *rest]:
            process.kill()
            process.wait()
        first.stdout.close()


def main() -> None:
    nodes = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    got = swarms.run(nodes, rounds=5, policy={"name": "el"}, round={"patience": 60.0})
    with tempfile.TemporaryDirectory(prefix="pfl-bench-") as folder:
        four = daemons(4, Path(folder))
    rows = [
        {
            "what": f"swarm of {nodes}, 2 processes",
            "PSS GB": got.pss / GB,
            "MB per node": got.pss / nodes / 1e6,
            "s to import torch": got.imported,
            "s from there to all ready": got.ready,
        },
        {
            "what": f"4 daemons, scaled to {nodes}",
            "PSS GB": four / 4 * nodes / GB,
            "MB per node": four / 4 / 1e6,
            "s to import torch": "",
            "s from there to all ready": "",
        },
    ]
    notes = [f"the swarm needs {got.pss / (four / 4 * nodes):.2f} of the memory", "aims: PSS < 2 GB, ready < 20 s"]
    show(f"density: {nodes} digits nodes", rows, notes)


if __name__ == "__main__":
    main()
