"""Memory of a swarm over an hour: separate daemons that train and gossip, with some dead peers."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

import psutil

from benchmarks.report import show

MB = 1e6
EVERY = 15.0  # seconds between samples
WORDS = [
    sys.executable, "-m", "pfl_node", "--policy", "gossip", "--log-level", "warning",
    *("--set", "policy.delta=2"), *("--set", "policy.n_peers=3"), *("--set", "policy.quiet=8"),
    *("--set", "task.samples=60"), *("--set", "start.wait=60"),
]  # fmt: skip


def main() -> None:
    asked = arguments()
    with tempfile.TemporaryDirectory(prefix="pfl-soak-") as folder:
        nodes = begin(asked.nodes + asked.dead, Path(folder))
        try:
            wait_for_rounds(nodes, Path(folder))
            for victim in nodes[asked.nodes :]:
                victim.kill()
                victim.wait()
            alive = nodes[: asked.nodes]
            time.sleep(asked.warm * 60)
            before = rounds_of(asked.nodes, Path(folder))
            looks = watch(alive, asked.minutes * 60)
            tell(asked, looks, [b - a for a, b in zip(before, rounds_of(asked.nodes, Path(folder)), strict=True)])
        finally:
            for node in nodes:
                node.kill()
                node.wait()


def arguments() -> argparse.Namespace:
    ask = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    ask.add_argument("--nodes", type=int, default=10)
    ask.add_argument("--dead", type=int, default=3, help="additional daemons, killed after all have trained")
    ask.add_argument("--minutes", type=float, default=60.0)
    ask.add_argument("--warm", type=float, default=5.0, help="minutes before the first sample")
    return ask.parse_args()


def begin(count: int, folder: Path) -> list[subprocess.Popen[Any]]:
    """Start the daemons; the first is the seed of the others."""
    with (folder / "n0.log").open("w") as log:
        nodes = [subprocess.Popen([*WORDS, "--data-dir", "n0"], stdout=log, stderr=log, cwd=folder)]
    while "--peer-seed" not in (said := (folder / "n0.log").read_text()):
        if nodes[0].poll() is not None:
            raise SystemExit(said)
        time.sleep(0.2)
    seed = said.split("--peer-seed ")[1].split()[0].strip('",')
    for i in range(1, count):
        words = [*WORDS, "--data-dir", f"n{i}", "--peer-seed", seed]
        with (folder / f"n{i}.log").open("w") as log:
            nodes.append(subprocess.Popen(words, stdout=log, stderr=log, cwd=folder))
    return nodes


def wait_for_rounds(nodes: Sequence[subprocess.Popen[Any]], folder: Path) -> None:
    end = time.monotonic() + 300
    while min(rounds_of(len(nodes), folder)) < 3:
        if time.monotonic() > end:
            raise SystemExit("the daemons did not finish three rounds within 300 s")
        time.sleep(1)


def rounds_of(count: int, folder: Path) -> list[int]:
    return [rounds_in(folder / f"n{i}" / "journal.jsonl") for i in range(count)]


def rounds_in(journal: Path) -> int:
    if not journal.exists():
        return 0
    return sum(
        json.loads(line)["event"] == "round" for line in journal.read_text().splitlines() if line.endswith("}")
    )


def watch(nodes: Sequence[subprocess.Popen[Any]], seconds: float) -> list[list[float]]:
    """Sample the memory of each node; one row per sample."""
    start, looks = time.monotonic(), []
    while time.monotonic() < start + seconds:
        time.sleep(EVERY)
        looks.append([own_memory(node.pid) / MB for node in nodes])
    return looks


def own_memory(pid: int) -> float:
    """Anonymous memory in bytes, because the kernel evicts file pages at any time; without /proc, RSS."""
    status = Path(f"/proc/{pid}/status")
    lines = status.read_text().splitlines() if status.exists() else []
    own = next((line for line in lines if line.startswith("RssAnon:")), None)
    return float(own.split()[1]) * 1024 if own else float(psutil.Process(pid).memory_info().rss)


def growth(series: Sequence[float]) -> float:
    """MB per hour: the slope between the medians of the first and the last tenth."""
    tenth = max(1, len(series) // 10)
    hours = (len(series) - tenth) * EVERY / 3600
    return (median(series[-tenth:]) - median(series[:tenth])) / hours if hours else 0.0


def tell(asked: argparse.Namespace, looks: Sequence[Sequence[float]], rounds: Sequence[int]) -> None:
    series = list(zip(*looks, strict=True))
    grown = [growth(node) for node in series]
    row = {
        "nodes": asked.nodes,
        "dead": asked.dead,
        "minutes": asked.minutes,
        "rounds of a node": mean(rounds),
        "fewest": min(rounds),
        "own memory at the start, MB": mean(node[0] for node in series),
        "at the end": mean(node[-1] for node in series),
        "MB an hour, mean": mean(grown),
        "worst": max(grown),
    }
    quarters = [mean(looks[len(looks) * q // 4]) for q in range(4)] + [mean(looks[-1])]
    notes = [
        f"own memory at every quarter, MB: {', '.join(f'{q:.1f}' for q in quarters)}",
        f"after a warm-up of {asked.warm:g} minutes; each node: {', '.join(f'{g:+.2f}' for g in sorted(grown))}",
    ]
    show("memory of a swarm over time", [row], notes)


if __name__ == "__main__":
    main()
