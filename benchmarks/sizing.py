"""What a node needs by the size of its model: memory at its highest, disk, bytes on the wire. Daemons with TLS.

`python -m benchmarks.sizing 1 10 100` measures models of so many MB; each node sends its model to all others.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from benchmarks.report import show
from pfl_node.security.ca import Authority

NODES = 3
ROUNDS = 12
MB = 1_000_000


def wide(mb: float) -> dict[str, Any]:
    """The task: hardly any data, and a network of so many MB."""
    import numpy as np
    from torch import nn

    width = round(mb * MB / 4 / (256 + 10))
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(64, 256)).astype("float32"), rng.integers(0, 10, 64)
    return {
        "model": lambda: nn.Sequential(nn.Linear(256, width), nn.ReLU(), nn.Linear(width, 10)),
        "train": (x[:48], y[:48]),
        "test": (x[48:], y[48:]),
        "train_defaults": {"batch": 48, "lr": 0.01},
    }


@contextmanager
def swarm(folder: Path, mb: float) -> Iterator[list[subprocess.Popen[str]]]:
    """Its nodes are under way. The first is the seed of the others."""
    authority = Authority.create(folder / "ca", "sizing", 1)
    sets = [f"task.mb={mb}", f"start.peers={NODES - 1}", "start.wait=300", "round.patience=60"]
    words = [sys.executable, "-m", "pfl_node", "--tls", "--policy", "el", "--task", f"{Path(__file__)}:wide"]
    words += ["--rounds", str(ROUNDS), *(word for s in sets for word in ("--set", s))]
    nodes: list[subprocess.Popen[str]] = []
    seed: list[str] = []
    try:
        for i in range(NODES):
            authority.issue_for(folder / f"n{i}", name=f"n{i}", days=1)
            line = [*words, "--data-dir", f"n{i}", *seed]
            nodes.append(
                subprocess.Popen(line, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            )
            listening = nodes[-1].stdout
            assert listening is not None
            seed = seed or ["--peer-seed", json.loads(listening.readline())["address"]]
        yield nodes
    finally:
        for node in nodes:
            node.kill()
            node.wait()
            if node.stdout:
                node.stdout.close()


def measure(mb: float) -> dict[str, Any]:
    with TemporaryDirectory() as place, swarm(Path(place), mb) as nodes:
        highest: dict[int, int] = {}
        cpu: dict[int, float] = {}
        watched = {node.pid: psutil.Process(node.pid) for node in nodes}
        while watched:
            for pid, process in list(watched.items()):
                try:
                    highest[pid], cpu[pid] = _peak(pid), sum(process.cpu_times()[:2])
                    process.wait(0.2 / NODES)
                    del watched[pid]
                except psutil.TimeoutExpired:
                    pass
                except (psutil.NoSuchProcess, OSError):
                    del watched[pid]
        if any(node.wait() for node in nodes):
            raise SystemExit("a node failed")
        homes = [Path(place) / f"n{i}" for i in range(NODES)]
        rows = [json.loads(line) for line in (homes[0] / "journal.jsonl").read_text().splitlines()]
        rounds = [row["time"] for row in rows if row["event"] == "round"]
        return {
            "model MB": mb,
            "peak RSS MB": mean(highest.values()) / MB,
            "disk MB": mean(sum(file.stat().st_size for file in home.iterdir()) for home in homes) / MB,
            "s per round": (rounds[-1] - rounds[1]) / (len(rounds) - 2),
            "CPU s in all": mean(cpu.values()),
        }


def _peak(pid: int) -> int:
    """Bytes; the kernel keeps the highest."""
    text = Path(f"/proc/{pid}/status").read_text()
    return next((int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("VmHWM")), 0)


def main() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    sizes = [float(word) for word in sys.argv[1:]] or [0.1, 1.0, 10.0, 100.0]
    rows = [measure(mb) for mb in sizes]
    notes = [
        f"{NODES} daemons with TLS on one machine, el, {ROUNDS} rounds; a model goes to {NODES - 1} peers in each"
    ]
    show("sizing: what a node needs by the size of its model", rows, notes)


if __name__ == "__main__":
    main()
