"""CPU per node-round of the simulator against a bare PyTorch loop that does the same steps and evaluations.

The bare loop replays the jobs of the simulated nodes, batch by batch and sample by sample: once as usually
written, once tuned (channels last, small evaluation batches). The target refers to the faster of the two.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.bare import Bare, Counted, Work
from benchmarks.report import show
from benchmarks.tasks import facade_lenet
from pfl_node.learning.task import Data, Task
from pfl_node.settings import PolicySettings, Settings, TrainSettings
from pfl_node.sim import simulate

NODES, ROUNDS, TRAIN, HELD = 5, 3, 500, 100
STEPS, BATCH = 10, 8
CIFAR = Path(__file__).resolve().parents[2] / "shared" / "data"
POLICIES: dict[str, dict[str, Any]] = {
    "facade": {"name": "facade", "warmup": 1, "all_reduce": False},
    "pens": {"name": "pens", "n_sampled": 4, "m": 2, "T": 100, "score_samples": 80},
}


def images() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64], str]:
    """CIFAR-10 if available, otherwise synthetic images of its shape."""
    n = NODES * (TRAIN + HELD)
    if (CIFAR / "cifar-10-batches-py").is_dir():
        from torchvision.datasets import CIFAR10

        data = CIFAR10(str(CIFAR), train=True, download=False)
        x = data.data[:n].transpose(0, 3, 1, 2).astype(np.float32) / 127.5 - 1
        return np.ascontiguousarray(x), np.array(data.targets[:n], np.int64), "CIFAR-10"
    rng = np.random.default_rng(0)
    return rng.normal(size=(n, 3, 32, 32)).astype(np.float32), rng.integers(0, 10, n), "made images"


def tasks(x: npt.NDArray[np.float32], y: npt.NDArray[np.int64]) -> list[Task]:
    found = []
    for i in range(NODES):
        start = i * (TRAIN + HELD)
        mine, held = slice(start, start + TRAIN), slice(start + TRAIN, start + TRAIN + HELD)
        rest = Data(x[held], y[held])
        found.append(Task("lenet", facade_lenet, Data(x[mine], y[mine]), val=rest, test=rest, head="13"))
    return found


def simulated(policy: str, learners: Sequence[Counted]) -> tuple[float, Work]:
    """CPU seconds of a whole run with its journal, and its jobs."""
    work = Work()
    for learner in learners:
        learner.work = work
    settings = Settings(rounds=ROUNDS, policy=PolicySettings(**POLICIES[policy]))

    with tempfile.TemporaryDirectory(prefix="pfl-bench-") as folder:
        summary = simulate(settings, nodes=NODES, out=Path(folder), load=lambda index, _: learners[index])
    return summary.cpu_seconds, work


# -- the table ---------------------------------------------------------------------------------------------------


def measure(policy: str, learners: Sequence[Counted], bares: dict[str, Bare], repeats: int) -> dict[str, Any]:
    """Interleave simulator and bare loops, so that noise of the machine affects all alike."""
    times: dict[str, list[float]] = {"sim": [], **{name: [] for name in bares}}
    around: list[float] = []
    for turn in range(repeats + 1):
        cpu, work = simulated(policy, learners)
        found = {"sim": cpu} | {name: bare.replay(work.jobs) for name, bare in bares.items()}
        if turn:  # the first turn is a warm-up
            around.append(cpu - work.seconds)
            for name, seconds in found.items():
                times[name].append(seconds)
    milliseconds = {name: 1000 * median(t) / (NODES * ROUNDS) for name, t in times.items()}
    ratios = {name: [s / b for s, b in zip(times["sim"], times[name], strict=True)] for name in bares}
    return {
        "policy": policy,
        "CPU ms per node-round": milliseconds["sim"],
        "of it outside learning": 1000 * median(around) / (NODES * ROUNDS),
        **{f"bare, {name}": milliseconds[name] for name in bares},
        **{f"ratio to {name}": median(ratios[name]) for name in bares},
        "spread": f"{min(ratios['tuned']):.2f}-{max(ratios['tuned']):.2f}",
    }


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    torch.set_num_threads(1)
    x, y, source = images()
    all_tasks = tasks(x, y)
    how = TrainSettings(steps=STEPS, batch=BATCH, lr=0.01)
    learners = [Counted(index, task, how) for index, task in enumerate(all_tasks)]
    bares = {"plain": Bare(all_tasks, tuned=False), "tuned": Bare(all_tasks, tuned=True)}
    rows = [measure(policy, learners, bares, repeats) for policy in POLICIES]
    notes = [
        f"{NODES} nodes x {ROUNDS} rounds, FACADE's LeNet (89,834 parameters), {source}",
        f"a round: {STEPS} batches of {BATCH}, the policy's own scores, {HELD} samples each of val and test",
        "aim: at most 1.05 of the quicker bare loop (tuned: channels last, evaluation in batches of 64)",
    ]
    show("overhead: the simulator against bare PyTorch", rows, notes)


if __name__ == "__main__":
    main()
