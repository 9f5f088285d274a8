"""CPU per node-round of a swarm over gRPC against a bare PyTorch loop with the same steps and evaluations."""

from __future__ import annotations

import subprocess
import sys
import time
from statistics import median
from typing import Any

from benchmarks import swarms
from benchmarks.report import show

NODES, ROUNDS, SAMPLES, TEST = 8, 12, 200, 20

POLICIES: dict[str, dict[str, Any]] = {
    "facade": {"name": "facade", "warmup": 2, "all_reduce": False},
    "pens": {"name": "pens", "n_sampled": 4, "m": 2, "T": 100, "delta": 0.25, "quiet": 30.0, "score_samples": 80},
}


def swarm(policy: str) -> swarms.Measured:
    return swarms.run(
        NODES,
        rounds=ROUNDS,
        policy=POLICIES[policy],
        task={"name": swarms.LENET, "samples": SAMPLES, "test": TEST},
        round={"patience": 60.0},
    )


def bare(trained: int, scored: int, measured: int, *, channels_last: bool) -> float:
    """CPU seconds of the same work in bare PyTorch, in its own process, without imports."""
    work = (trained, scored, measured, channels_last)
    code = f"from benchmarks.overhead import bare_here; bare_here{work}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout)


def bare_here(trained: int, scored: int, measured: int, channels_last: bool) -> None:
    import torch

    from benchmarks.tasks import bare_score, bare_steps, facade_lenet, lenet

    torch.set_num_threads(1)
    task = lenet(samples=SAMPLES, test=TEST)
    x, y = (torch.as_tensor(a) for a in task["train"])
    tx, ty = (torch.as_tensor(a) for a in task["test"])
    model = facade_lenet()
    if channels_last:
        model = model.to(memory_format=torch.channels_last)
        x, tx = (a.contiguous(memory_format=torch.channels_last) for a in (x, tx))
    began = time.process_time()
    for _ in range(trained):
        bare_steps(model, x, y, steps=10, batch=8)
    for _ in range(scored):
        draw = torch.randperm(len(x))[:80]
        bare_score(model, x[draw], y[draw])
    for _ in range(measured):
        bare_score(model, tx, ty)
    print(time.process_time() - began)


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    rows = []
    for policy in POLICIES:
        plain, best = [], []
        for _ in range(repeats):
            got = swarm(policy)
            work = (got.work("trained"), got.work("scored"), got.work("measured"))
            alone = [bare(*work, channels_last=way) for way in (False, True)]
            plain.append(got.cpu / alone[0])
            best.append(got.cpu / min(alone))
        rows.append(
            {
                "policy": policy,
                "node-rounds": got.node_rounds,
                "swarm, CPU ms per node-round": 1000 * got.cpu / got.node_rounds,
                "against a plain loop": median(plain),
                "against one in channels_last": median(best),
                "all of the latter": " ".join(f"{r:.3f}" for r in best),
            }
        )
    notes = ["ratio of CPU seconds for the same number of steps and evaluations; aim 1.15"]
    show("overhead: a swarm over gRPC against bare PyTorch", rows, notes)


if __name__ == "__main__":
    main()
