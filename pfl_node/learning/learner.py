"""One node's data and how to learn from it: fresh models, training, scores. Knows no other node and no network."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pfl_node.errors import LayoutMismatch, TaskError
from pfl_node.learning import layout as layouts
from pfl_node.learning.batches import batches, generator
from pfl_node.learning.data import SPLITS, Samples, complete, settle
from pfl_node.learning.device import pick
from pfl_node.learning.optim import optimizer
from pfl_node.learning.options import BUILT_IN, Options, check_defaults, resolve
from pfl_node.learning.pool import pool_for
from pfl_node.learning.task import Task
from pfl_node.learning.workspace import Only, Workspace
from pfl_node.model import Layout, Model
from pfl_node.settings import TrainSettings
from pfl_node.types import Eval, Part, Split

EVAL_BATCH = 256
Between = Callable[[], None]


def nothing() -> None:
    pass


class Learner:
    """Synchronous, and a pure function of its arguments: the same seed gives the same bytes. Any thread may use
    it, one at a time; inside `between` it may be used again."""

    layout: Layout
    samples: int  # for training
    cluster: int | None

    def __init__(self, task: Task, settings: TrainSettings, device: str = "auto") -> None:
        self._device = pick(device)
        self._levels = (
            settings.model_dump(exclude_none=True, exclude={"init"}),
            check_defaults(task.name, task.train_defaults),
            BUILT_IN,
        )
        self._task = task = complete(task, seed=0)
        module = self._build(0)
        self._pool = pool_for(module, layouts.layout_of(module, task.head), self._device)
        self._dtypes = {name: t.dtype for name, t, _ in layouts.tensors_of(module)}
        images = any(isinstance(m, nn.Conv2d) for m in module.modules())
        self._splits = {s: settle(getattr(task, s), self._device, channels_last=images) for s in SPLITS}
        self.layout = self._pool.layout
        self.samples = self._splits["train"].n
        self.cluster = task.cluster
        self._probe()

    def fresh(self, seed: int, part: Part = "model") -> Model:
        """A newly initialised model, or a part of it."""
        model = Model(self.layout, layouts.pack(self._build(seed), self.layout)).of(part)
        return model if part == "model" else Model(model.layout, model.vector.copy())

    def train(
        self,
        model: Model,
        *,
        seed: int,
        only: Only = None,
        epochs: float | None = None,
        steps: int | None = None,
        lr: float | None = None,
        prox: float = 0.0,
        anchor: Model | None = None,
        between: Between | None = None,
    ) -> Model:
        """Train on my data, with a new optimiser. `prox` pulls towards `anchor` (None: the model itself). A result
        that is not finite is given back as it is. `between` is called after every batch."""
        self._check(model)
        options = resolve(({"epochs": epochs, "steps": steps, "lr": lr}, *self._levels))
        with self._pool.borrow() as space:
            space.load(model)
            stretches = space.prepare(only, lone_samples=min(options.batch, self.samples) == 1)
            if stretches:
                target = None if prox == 0 else self._vector(anchor or model)
                torch.manual_seed(seed % 2**63)  # dropout has no other source of chance
                self._run(space, stretches, options, seed, prox, target, between or nothing)
            vector = space.export()
        split = self.layout.core_size
        if only == "core":
            vector[split:] = model.vector[split:]
        elif only == "head":
            vector[:split] = model.vector[:split]
        return Model(self.layout, vector)

    def score(
        self,
        models: Sequence[Model],
        *,
        split: Split = "train",
        samples: int | None = None,
        own_sample_each: bool = False,
        seed: int = 0,
        between: Between | None = None,
    ) -> tuple[Eval, ...]:
        """Loss and accuracy on all samples of a split, or on so many random ones, the same for all models.

        With `own_sample_each` every model gets its own draw; where that would be all the data it is drawn with
        replacement, so that equal models can still be told apart. The accuracy is NaN where labels are no classes.
        """
        data, chance = self._splits[split], generator(seed)
        draw = self._draw(data.n, samples, own_sample_each, chance)
        results = []
        with self._pool.borrow() as space, torch.inference_mode():
            for model in models:
                self._check(model)
                space.load(model)
                results.append(self._evaluate(space.module, data, draw, between or nothing))
                if own_sample_each:
                    draw = self._draw(data.n, samples, own_sample_each, chance)
        return tuple(results)

    def tensors(self, model: Model) -> dict[str, layouts.Array]:
        """Named arrays in the module's own shapes and types, for a file."""
        return layouts.unpack(model, self._dtypes)

    def from_tensors(self, tensors: Mapping[str, layouts.Array], part: Part = "model") -> Model:
        return layouts.repack(tensors, self.layout.of(part))

    # -- inside ------------------------------------------------------------------------------------------------

    def _run(
        self,
        space: Workspace,
        stretches: Sequence[slice],
        options: Options,
        seed: int,
        prox: float,
        target: Tensor | None,
        between: Between,
    ) -> None:
        module, loss, (x, y) = space.module, self._loss, self._splits["train"]
        parts = [(space.flat[s], space.grad[s], None if target is None else target[s]) for s in stretches]
        rules = [optimizer(options, flat, grad) for flat, grad, _ in parts]
        for index in batches(self.samples, options, seed, single=not space.batch_norms):
            space.grad.zero_()
            loss(module(x[index]), y[index]).backward()  # type: ignore[no-untyped-call]
            for flat, grad, pull in parts:
                if pull is not None:
                    grad.add_(flat - pull, alpha=prox)
            for rule in rules:
                rule.step()
            between()

    def _evaluate(self, module: nn.Module, data: Samples, draw: Tensor | None, between: Between) -> Eval:
        n = data.n if draw is None else len(draw)
        loss = right = 0.0
        for start in range(0, n, EVAL_BATCH):
            index = slice(start, min(start + EVAL_BATCH, n)) if draw is None else draw[start : start + EVAL_BATCH]
            y = data.y[index]
            output = module(data.x[index])
            loss += self._loss(output, y).item() * len(y)
            right += accuracy(output, y) * len(y)
            between()
        return Eval(loss / n, right / n, n)

    def _loss(self, output: Tensor, y: Tensor) -> Tensor:
        if self._task.loss is None:
            return cross_entropy(output, y)
        loss: Tensor = self._task.loss(output, y)
        return loss if loss.ndim == 0 else loss.mean()

    def _draw(self, n: int, samples: int | None, own: bool, chance: torch.Generator) -> Tensor | None:
        wanted = n if samples is None else min(samples, n)
        if wanted < n:
            return torch.randperm(n, generator=chance)[:wanted]
        return torch.randint(n, (n,), generator=chance) if own else None

    def _build(self, seed: int) -> nn.Module:
        """A new module. The generator of a training that may be going on around us is left as it was."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed % 2**63)
            return self._task.model()

    def _vector(self, model: Model) -> Tensor:
        self._check(model)
        return torch.tensor(model.vector, device=self._device)

    def _check(self, model: Model) -> None:
        if model.layout is not self.layout and model.layout != self.layout:
            raise LayoutMismatch(f"{model!r} does not fit this task's layout {self.layout.digest[:8]}")

    def _probe(self) -> None:
        """Run two samples once, so that a model and data that do not fit are found now."""
        x, y = (t[:2] for t in self._splits["train"])
        name = self._task.name
        if self._task.loss is None and y.is_floating_point() and y.ndim < 2:
            raise TaskError(f"task {name}: the labels are {y.dtype}: give integers, or a loss for such labels")
        try:
            with self._pool.borrow() as space, torch.inference_mode():
                space.load(self.fresh(0))
                output = space.module(x)
                self._loss(output, y)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            text = str(error).strip().splitlines()[0]
            raise TaskError(
                f"task {name}: the model or the loss fails on x {tuple(x.shape)} {x.dtype}, "
                f"y {tuple(y.shape)} {y.dtype}: {text}"
            ) from error


def accuracy(output: Tensor, y: Tensor) -> float:
    """The share of right classes; NaN where the labels are no classes."""
    if not isinstance(output, Tensor) or y.is_floating_point() or output.ndim != y.ndim + 1:
        return float("nan")
    guess = output.argmax(1)
    return (guess == y).sum().item() / y.numel() if guess.shape == y.shape else float("nan")
