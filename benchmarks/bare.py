"""Records what the learners of a run compute and replays it in bare PyTorch: module, autograd, plain loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

import torch
from torch import Tensor, nn

from pfl_node.errors import TaskError
from pfl_node.learning.data import SPLITS
from pfl_node.learning.eval_cache import Measured
from pfl_node.learning.learner import Learner
from pfl_node.learning.samples import Samples
from pfl_node.learning.task import Data, Task
from pfl_node.learning.train_options import Options, resolve
from pfl_node.learning.training_loop import Between
from pfl_node.model import Model
from pfl_node.settings import TrainSettings
from pfl_node.types import Eval


@dataclass(frozen=True)
class Job:
    """One computation of a node: `count` training batches, or `count` scored samples of a split."""

    node: int
    kind: str | None  # the split; None: training
    count: int
    options: Options | None = None  # of a training
    only: str | None = None  # the part that was trained


class Work:
    """The jobs of a run, and the CPU seconds spent inside the learners."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.seconds = 0.0

    @contextmanager
    def timed(self) -> Iterator[None]:
        began = time.process_time()
        yield
        self.seconds += time.process_time() - began


class Counted(Learner):
    """A learner that records its jobs."""

    tell: Callable[[Job], None] | None = None

    def __init__(self, index: int, task: Task, settings: TrainSettings, device: str = "cpu") -> None:
        self.index = index
        self.work = Work()
        super().__init__(task, settings, device)

    def fresh(self, *given: Any, **asked: Any) -> Model:
        with self.work.timed():
            return super().fresh(*given, **asked)

    def train(self, model: Model, **asked: Any) -> Model:
        batches = 0

        def after_a_batch() -> None:
            nonlocal batches
            batches += 1

        with self.work.timed():
            trained = super().train(model, **asked, between=after_a_batch)
        call = {key: asked.get(key) for key in ("epochs", "steps", "lr")}
        options = resolve((call, *self._levels), asked.get("prox", 0.0))
        self._done(Job(self.index, None, batches, options, asked.get("only")))
        return trained

    def score(self, *given: Any, **asked: Any) -> tuple[Eval, ...]:
        with self.work.timed():
            return super().score(*given, **asked)

    def _evaluate(self, module: nn.Module, data: Samples, draw: Tensor | None, between: Between) -> Measured:
        """Cached scores are not computed again and count as no job."""
        split = next(split for split in SPLITS if self._splits[split] is data)
        found = super()._evaluate(module, data, draw, between)
        self._done(Job(self.index, split, found.figures.samples))
        return found

    def _done(self, job: Job) -> None:
        self.work.jobs.append(job)
        if self.tell:
            self.tell(job)

    def confusion(self, *given: Any, **options: Any) -> list[list[int]] | None:
        with self.work.timed():
            return super().confusion(*given, **options)

    def predict(self, *_: Any, **__: Any) -> Model:
        raise TaskError("predictions are not compared with a bare loop")

    def distill(self, *_: Any, **__: Any) -> Model:
        raise TaskError("distillation is not compared with a bare loop")


class Bare:
    """Hand-written loops with one model per node. Training creates a new optimiser each time, as a node does."""

    def __init__(self, tasks: Sequence[Task] = (), *, tuned: bool) -> None:
        self.form = torch.channels_last if tuned else torch.contiguous_format
        self.eval_batch = 64 if tuned else 256
        self.models: list[nn.Module] = []
        self.heads: list[tuple[str, ...]] = []
        self.data: dict[str, list[tuple[Tensor, Tensor]]] = {split: [] for split in SPLITS}
        for task in tasks:
            self.add(task)

    def add(self, task: Task) -> None:
        """Add a node."""
        self.models.append(task.model().to(memory_format=self.form))
        self.heads.append((task.head,) if isinstance(task.head, str) else tuple(task.head or ()))
        for split, data in self.data.items():
            data.append(_tensors(getattr(task, split), self.form))

    def replay(self, jobs: Sequence[Job]) -> float:
        """Run the jobs again and return the CPU seconds."""
        began = time.process_time()
        for job in jobs:
            self.do(job)
        return time.process_time() - began

    def do(self, job: Job) -> None:
        model = self.models[job.node]
        if job.kind is None:
            assert job.options is not None
            self._choose(job)
            fit(model, *self.data["train"][job.node], batches=job.count, how=job.options)
        else:
            score(model, *self.data[job.kind][job.node], job.count, self.eval_batch)

    def _choose(self, job: Job) -> None:
        """Select the trainable parameters."""
        for name, parameter in self.models[job.node].named_parameters():
            in_head = name.startswith(self.heads[job.node])
            parameter.requires_grad_(job.only is None or in_head == (job.only == "head"))


def _tensors(data: Data | None, form: torch.memory_format) -> tuple[Tensor, Tensor]:
    assert data is not None
    x, y = torch.as_tensor(data.x), torch.as_tensor(data.y)
    return (x.contiguous(memory_format=form) if x.ndim == 4 else x), y


def fit(model: nn.Module, x: Tensor, y: Tensor, *, batches: int, how: Options) -> None:
    model.train()
    learning = [p for p in model.parameters() if p.requires_grad]
    anchor = [p.detach().clone() for p in learning] if how.prox else []
    optimizer = _optimizer(learning, how)
    for index in islice(_batches(len(x), how), batches):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x[index]), y[index])
        for parameter, start in zip(learning, anchor, strict=False):
            loss = loss + how.prox / 2 * (parameter - start).square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def _optimizer(parameters: list[nn.Parameter], how: Options) -> torch.optim.Optimizer:
    if how.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=how.lr, weight_decay=how.weight_decay)
    return torch.optim.SGD(parameters, lr=how.lr, momentum=how.momentum, weight_decay=how.weight_decay)


def _batches(samples: int, how: Options) -> Iterator[Tensor]:
    """With epochs the last batch of a pass may be smaller; with steps all are full."""
    size = min(how.batch, samples)
    for _ in count():
        for piece in torch.split(torch.randperm(samples), size):
            if how.steps is None or len(piece) == size:
                yield piece


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
