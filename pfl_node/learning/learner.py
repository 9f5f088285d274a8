"""One node's data and how to learn from it: fresh models, training, scores. Knows no other node and no network."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pfl_node.errors import LayoutMismatch, PflError, TaskError
from pfl_node.learning import layout as layouts
from pfl_node.learning.batches import batches
from pfl_node.learning.chance import generator, seed_layers, seeded
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

EVAL_BATCH = 512
EVAL_BATCH_IMAGES = 64  # on a CPU: larger ones leave the cache, 256 took 1.6 times as long
IGNORED = -100  # the label that torch's cross-entropy passes over
Between = Callable[[], None]


def nothing() -> None:
    pass


class Learner:
    """Synchronous, and on a CPU a pure function of its arguments: the same seed gives the same bytes. Any thread
    may use it, one at a time; inside `between` it may be used again."""

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
        task = complete(task, seed=0)
        self._name, self._factory, self._given_loss, self.cluster = task.name, task.model, task.loss, task.cluster
        module = self._build(0)
        self._pool = pool_for(module, layouts.layout_of(module, task.head), self._device)
        self._dtypes = {name: t.dtype for name, t, _ in layouts.tensors_of(module)}
        images = any(isinstance(m, nn.Conv2d) for m in module.modules())
        self._splits = {s: settle(getattr(task, s), self._device, channels_last=images) for s in SPLITS}
        self._eval_batch = EVAL_BATCH_IMAGES if images and self._device.type == "cpu" else EVAL_BATCH
        self.layout = self._pool.layout
        self.samples = self._splits["train"].n
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
        options = resolve(({"epochs": epochs, "steps": steps, "lr": lr}, *self._levels), prox)
        with self._pool.borrow() as space:
            space.load(model)
            self._fit(space, options, only, seed, anchor or model, between or nothing)
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
        data, chance, results = self._splits[split], generator(seed), []
        draw = draw_samples(data.n, samples, own_sample_each, chance)
        with self._pool.borrow() as space:
            for n, model in enumerate(models):
                if n and own_sample_each:
                    draw = draw_samples(data.n, samples, own_sample_each, chance)
                self._check(model)
                space.load(model)
                results.append(self._evaluate(space.module, data, draw, between or nothing))
        return tuple(results)

    def tensors(self, model: Model) -> dict[str, layouts.Array]:
        """Named arrays in the module's own shapes and types, for a file."""
        return layouts.unpack(model, self._dtypes)

    def from_tensors(self, tensors: Mapping[str, layouts.Array], part: Part = "model") -> Model:
        """The inverse of `tensors`."""
        return layouts.repack(tensors, self.layout.of(part))

    # -- inside ------------------------------------------------------------------------------------------------

    def _fit(
        self, space: Workspace, options: Options, only: Only, seed: int, anchor: Model, between: Between
    ) -> None:
        stretches = space.prepare(only, lone_samples=min(options.batch, self.samples) == 1)
        if not stretches:
            return
        rules = [optimizer(options, space.flat[s], space.grad[s]) for s in stretches]
        pulls = self._pulls(space, stretches, options.prox, anchor)
        module, loss, (x, y) = space.module, self._loss, self._splits["train"]
        seed_layers(seed, self._device)
        for index in batches(self.samples, options, seed, single=not space.batch_norms):
            space.grad.zero_()
            loss(module(x[index]), y[index]).backward()  # type: ignore[no-untyped-call]
            for grad, flat, target in pulls:
                grad.add_(flat - target, alpha=options.prox)
            for rule in rules:
                rule.step()
            between()

    def _pulls(
        self, space: Workspace, stretches: Sequence[slice], prox: float, anchor: Model
    ) -> list[tuple[Tensor, Tensor, Tensor]]:
        if not prox:
            return []
        self._check(anchor)
        target = torch.tensor(anchor.vector, device=self._device)
        return [(space.grad[s], space.flat[s], target[s]) for s in stretches]

    def _evaluate(self, module: nn.Module, data: Samples, draw: Tensor | None, between: Between) -> Eval:
        n = data.n if draw is None else len(draw)
        loss = right = 0.0
        for start in range(0, n, self._eval_batch):
            some = slice(start, start + self._eval_batch)
            index = some if draw is None else draw[some]
            with torch.inference_mode():
                y = data.y[index]
                output = module(data.x[index])
                loss += self._loss(output, y).item() * len(y)
                right += accuracy(output, y) * len(y)
            between()
        return Eval(loss / n, right / n, n)

    def _loss(self, output: Tensor, y: Tensor) -> Tensor:
        if self._given_loss is None:
            return cross_entropy(output, y)
        loss: Tensor = self._given_loss(output, y)
        return loss if loss.ndim == 0 else loss.mean()

    def _build(self, seed: int) -> nn.Module:
        with seeded(seed):
            module = self._factory()
        if not isinstance(module, nn.Module):
            raise TaskError(f"task {self._name}: the model is of type {type(module).__name__}, not an nn.Module")
        return module

    def _check(self, model: Model) -> None:
        if model.layout is not self.layout and model.layout != self.layout:
            raise LayoutMismatch(f"{model!r} does not fit this task's layout {self.layout.digest[:8]}")

    def _probe(self) -> None:
        """Run two samples once, so that a model and data that do not fit are found now; of val and test only
        where they do not look like train."""
        like = None
        for name, (x, y) in self._splits.items():
            kind = (x.shape[1:], x.dtype, y.shape[1:], y.dtype)
            if kind != like:
                self._try(name, x[:2], y[:2])
            like = like or kind

    def _try(self, split: str, x: Tensor, y: Tensor) -> None:
        if self._given_loss is None and y.is_floating_point() and y.ndim < 2:
            raise TaskError(
                f"task {self._name}: the labels are {y.dtype}: give integers, or a loss for such labels"
            )
        try:
            with self._pool.borrow() as space, torch.inference_mode():
                space.load(self.fresh(0))
                output = space.module(x)
                if self._given_loss is None and not y.is_floating_point() and output.ndim > 1:
                    self._check_labels(output.shape[1])
                self._loss(output, y)
        except PflError:
            raise
        except Exception as error:  # the user's code may raise anything
            text = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise TaskError(
                f"task {self._name}: the model or the loss fails on the {split} data, "
                f"x {tuple(x.shape)} {x.dtype}, y {tuple(y.shape)} {y.dtype}: {text}"
            ) from error

    def _check_labels(self, classes: int) -> None:
        for name, data in self._splits.items():
            if data.y.is_floating_point():
                continue
            low, high = int(data.y.min()), int(data.y.max())
            if high >= classes or (low < 0 and low != IGNORED):
                wrong = high if high >= classes else low
                raise TaskError(
                    f"task {self._name}: the {name} data has a label {wrong}, the model knows 0 to {classes - 1}"
                )


def accuracy(output: Tensor, y: Tensor) -> float:
    """The share of right classes; NaN where the labels are no classes."""
    if (
        not isinstance(output, Tensor)
        or y.is_floating_point()
        or output.ndim != y.ndim + 1
        or output.shape[1] == 1
    ):
        return float("nan")
    guess = output.argmax(1)
    return (guess == y).sum().item() / y.numel() if guess.shape == y.shape else float("nan")


def draw_samples(n: int, samples: int | None, own: bool, chance: torch.Generator) -> Tensor | None:
    """Which of n samples to score on; None: all."""
    wanted = n if samples is None else min(samples, n)
    if wanted < n:
        return torch.randperm(n, generator=chance)[:wanted]
    return torch.randint(n, (n,), generator=chance) if own else None
