"""CPU per node-round of the simulator against a bare PyTorch loop that does the same steps and evaluations.

The bare loop replays what the simulated nodes did, batch by batch and sample by sample: once as it is usually
written, once tuned (channels last, small batches to evaluate). The aim holds for the quicker of the two.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from benchmarks.report import show
from benchmarks.tasks import facade_lenet
from pfl_node.learning.learner import Learner
from pfl_node.learning.task import Data, Task
from pfl_node.model import Layout, Model
from pfl_node.settings import PolicySettings, Settings, TrainSettings
from pfl_node.sim import simulate
from pfl_node.types import Eval, Part, PeerId, Split

NODES, ROUNDS, TRAIN, HELD = 5, 3, 500, 100
STEPS, BATCH = 10, 8
CIFAR = Path(__file__).resolve().parents[2] / "shared" / "data"
POLICIES: dict[str, dict[str, Any]] = {
    "facade": {"name": "facade", "warmup": 1, "all_reduce": False},
    "pens": {"name": "pens", "n_sampled": 4, "m": 2, "T": 100, "score_samples": 80},
}


@dataclass(frozen=True)
class Job:
    """Something a node computed: `count` batches of training, or `count` samples of a split scored."""

    node: int
    kind: Split | None  # None: training
    count: int


class Work:
    """What was computed in a run, and the CPU seconds spent inside the learners."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.seconds = 0.0

    @contextmanager
    def timed(self) -> Iterator[None]:
        began = time.process_time()
        yield
        self.seconds += time.process_time() - began


class Counted:
    """A learner that writes down what it is asked to compute."""

    def __init__(self, index: int, learner: Learner, work: Work) -> None:
        self.index = index
        self.learner = learner
        self.work = work
        self.layout: Layout = learner.layout
        self.samples: int = learner.samples
        self.cluster: int | None = learner.cluster

    def fresh(self, seed: int, part: Part = "model") -> Model:
        with self.work.timed():
            return self.learner.fresh(seed, part)

    def train(self, model: Model, **asked: Any) -> Model:
        self.work.jobs.append(Job(self.index, None, STEPS))
        with self.work.timed():
            return self.learner.train(model, **asked)

    def confusion(self, _: Model) -> None:
        """Nobody looks at it here."""

    def score(self, models: Sequence[Model], *, split: Split = "train", **asked: Any) -> tuple[Eval, ...]:
        with self.work.timed():
            scores = self.learner.score(models, split=split, **asked)
        self.work.jobs.extend(Job(self.index, split, s.samples) for s in scores)
        return scores


def images() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64], str]:
    """CIFAR-10 where it is at hand, else made ones of its shape."""
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


def simulated(policy: str, learners: Sequence[Learner]) -> tuple[float, Work]:
    """CPU seconds of a whole run with its journal, and what was computed in it."""
    work = Work()
    settings = Settings(rounds=ROUNDS, policy=PolicySettings(**POLICIES[policy]))

    def load(index: int, _: PeerId) -> Any:  # it can do what these policies ask for
        return Counted(index, learners[index], work)

    with tempfile.TemporaryDirectory(prefix="pfl-bench-") as folder:
        summary = simulate(settings, nodes=NODES, out=Path(folder), load=load)
    return summary.cpu_seconds, work


# -- the same without us -----------------------------------------------------------------------------------------


class Bare:
    """Models, data and loops as one writes them by hand."""

    def __init__(self, all_tasks: Sequence[Task], *, tuned: bool) -> None:
        form = torch.channels_last if tuned else torch.contiguous_format
        self.eval_batch = 64 if tuned else 256
        self.models = [facade_lenet().to(memory_format=form) for _ in all_tasks]
        self.train = [self._tensors(t.train, form) for t in all_tasks]
        self.held = [self._tensors(t.test, form) for t in all_tasks]

    def _tensors(self, data: Data | None, form: torch.memory_format) -> tuple[Tensor, Tensor]:
        assert data is not None
        return torch.from_numpy(data.x).to(memory_format=form), torch.from_numpy(data.y)

    def replay(self, jobs: Sequence[Job]) -> float:
        """CPU seconds."""
        began = time.process_time()
        for job in jobs:
            model, data = self.models[job.node], self.train[job.node]
            if job.kind is None:
                fit(model, *data, steps=job.count)
            else:
                score(model, *(data if job.kind == "train" else self.held[job.node]), job.count, self.eval_batch)
        return time.process_time() - began


def fit(model: nn.Module, x: Tensor, y: Tensor, *, steps: int) -> None:
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    order = torch.randperm(len(x))
    for i in range(steps):
        index = order[i * BATCH : (i + 1) * BATCH]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[index]), y[index]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def score(model: nn.Module, x: Tensor, y: Tensor, samples: int, batch: int) -> tuple[float, float]:
    model.eval()
    if samples < len(x):
        draw = torch.randperm(len(x))[:samples]
        x, y = x[draw], y[draw]
    loss = right = 0.0
    with torch.inference_mode():
        for xs, ys in zip(torch.split(x, batch), torch.split(y, batch), strict=True):
            output = model(xs)
            loss += nn.functional.cross_entropy(output, ys).item() * len(ys)
            right += (output.argmax(1) == ys).sum().item()
    return loss / samples, right / samples


# -- the table ---------------------------------------------------------------------------------------------------


def measure(policy: str, learners: Sequence[Learner], bares: dict[str, Bare], repeats: int) -> dict[str, Any]:
    """Simulator and bare loops one after the other, again and again, so that all feel the machine's moods."""
    times: dict[str, list[float]] = {"sim": [], **{name: [] for name in bares}}
    around: list[float] = []
    for turn in range(repeats + 1):
        cpu, work = simulated(policy, learners)
        found = {"sim": cpu} | {name: bare.replay(work.jobs) for name, bare in bares.items()}
        if turn:  # the first one warms up
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
    learners = [Learner(t, TrainSettings(steps=STEPS, batch=BATCH, lr=0.01), "cpu") for t in all_tasks]
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
