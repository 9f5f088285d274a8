"""The training loop: one optimizer step of a workspace's model per batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count, islice
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from pfl_node.learning.optim import Again, Optimizer, optimizer
from pfl_node.learning.precision import LossScaler, autocast
from pfl_node.learning.seeding import generator
from pfl_node.learning.torch_optim import TorchRule
from pfl_node.learning.train_options import Options, number_of_batches
from pfl_node.learning.workspace import Only, Workspace
from pfl_node.model import Model

Between = Callable[[], None]
T = TypeVar("T")  # a batch, or the indices of one


def nothing() -> None:
    pass


class TrainingRun:
    """One training; its optimizer keeps its state from one `run` to the next."""

    def __init__(
        self,
        space: Workspace,
        options: Options,
        *,
        only: Only = None,
        lone_samples: bool = False,
        anchor: Model | None = None,
        correction: Model | None = None,
        lr_factor: Callable[[int], float] | None = None,  # factor for each batch, counted from 0
    ) -> None:
        self._space, self._options = space, options
        self._only, self._lone_samples = only, lone_samples
        self._lr_factor = lr_factor
        pieces = space.stretches(only)
        if options.arguments is not None or options.precision == "fp16":
            space.prepare(only, lone_samples=lone_samples)  # selects the parameters to train
        self._rules = rules_for(space, options, pieces)
        self._grads = [space.grad[p] for p in pieces]
        self._scaler = LossScaler(space.flat.device, trained(space)) if options.precision == "fp16" else None
        self._pulls = self._beside(anchor if options.prox else None, pieces)
        self._corrections = self._beside(correction, pieces)

    def _beside(self, model: Model | None, pieces: Sequence[slice]) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Gradient, parameters and the numbers of another model, for each trained slice that is shared."""
        if model is None:
            return []
        space = self._space
        numbers = torch.tensor(model.vector, device=space.flat.device)
        travels = [p for p in pieces if p.stop <= space.layout.size]
        return [(space.grad[p], space.flat[p], numbers[p]) for p in travels]

    def run(self, batches: Iterable[T], loss: Callable[[T], Tensor], between: Between) -> None:
        """One step for the loss of each batch, in training mode."""
        scaler, device, precision = self._scaler, self._space.flat.device, self._options.precision

        def differentiate(batch: T) -> Tensor:
            with autocast(precision, device):
                found = loss(batch)
            (scaler.scale(found) if scaler else found).backward()  # type: ignore[no-untyped-call]
            return found

        self.follow(batches, differentiate, between)

    def follow(self, batches: Iterable[T], differentiate: Callable[[T], Any], between: Between) -> None:
        """One step for every `accumulate` batches; `differentiate` adds the gradient of a batch to the workspace's
        and returns the loss."""
        if not self._rules:
            return
        self._space.prepare(self._only, lone_samples=self._lone_samples)
        every, waiting = self._options.accumulate, 0
        for number, batch in enumerate(batches):
            if not waiting:
                self._space.grad.zero_()
            differentiate(batch)
            waiting += 1
            if waiting == every:
                self._update(number, waiting, partial(self._again, batch, differentiate))
                waiting = 0
            between()
        if waiting:
            self._update(number, waiting, None)

    def _update(self, number: int, batches: int, again: Again | None) -> None:
        """Step with the mean gradient of some batches."""
        if self._scaler:
            self._scaler.unscale()
        if batches > 1:
            self._space.grad.div_(batches)
        for grad, flat, target in self._pulls:
            grad.add_(flat - target, alpha=self._options.prox)
        for grad, _, vector in self._corrections:
            grad.add_(vector)
        if self._options.clip is not None:
            shorten(self._grads, self._options.clip)
        if self._lr_factor:
            factor = self._lr_factor(number)
            for rule in self._rules:
                rule.scale_lr(factor)
        if self._scaler:
            self._scaler.apply(self._step)
        else:
            self._step(again)

    def _step(self, again: Again | None = None) -> None:
        for rule in self._rules:
            rule.step(again)

    def _again(self, batch: T, differentiate: Callable[[T], Any]) -> Tensor:
        """The gradient of the same batch at another point, for optimizers with a line search."""
        self._space.grad.zero_()
        loss: Tensor = differentiate(batch)
        for grad, flat, target in self._pulls:
            grad.add_(flat - target, alpha=self._options.prox)
            loss = loss + self._options.prox / 2 * (flat - target).square().sum()
        for grad, flat, vector in self._corrections:
            grad.add_(vector)
            loss = loss + (flat * vector).sum()
        return loss

    def state(self) -> dict[str, Any]:
        """The state as tensors and numbers, from which another run continues."""
        kept = {f"{n}/{key}": value for n, rule in enumerate(self._rules) for key, value in rule.state().items()}
        return kept | ({f"scaler/{k}": v for k, v in self._scaler.state().items()} if self._scaler else {})

    def load(self, state: Mapping[str, Any]) -> None:
        for n, rule in enumerate(self._rules):
            if found := _below(f"{n}/", state):
                rule.load(found)
        if self._scaler and (found := _below("scaler/", state)):
            self._scaler.load(found)


def rules_for(space: Workspace, options: Options, pieces: Sequence[slice]) -> list[Optimizer]:
    if not pieces:
        return []
    if options.arguments is None:
        return [optimizer(options, space.flat[p], space.grad[p]) for p in pieces]
    return [TorchRule(options, trained(space))]


def trained(space: Workspace) -> list[nn.Parameter]:
    """The parameters that the prepared training changes."""
    return [p for p in space.module.parameters() if p.requires_grad]


def shorten(grads: Sequence[Tensor], most: float) -> None:
    """Scale gradients down to a joint L2 norm of `most`, without waiting for the device."""
    norm = torch.stack([torch.linalg.vector_norm(grad) for grad in grads]).norm()
    factor = (most / (norm + 1e-6)).clamp(max=1.0)
    for grad in grads:
        grad.mul_(factor)


def lr_factors(options: Options, round: int, samples: int) -> Callable[[int], float] | None:
    """The factor on the learning rate for each batch of a training in this round; None: always 1."""
    schedule, n = options.schedule, number_of_batches(samples, options)
    if schedule is None:
        return None
    return lambda batch: schedule.at(round + batch / n, round + (batch + 1) / n)


def _below(prefix: str, state: Mapping[str, Any]) -> dict[str, Any]:
    return {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}


def batches(
    samples: int, options: Options, seed: int, *, single: bool = True, device: torch.device | None = None
) -> Iterator[Tensor]:
    """Index tensors, with a new permutation for every epoch, which goes to the device in one piece.

    With epochs, the last, smaller batch of an epoch is included; with steps, all batches are full. A remainder of
    one sample is skipped if `single` is false (batch normalisation cannot use it).
    """
    size = min(options.batch, samples)
    chance = generator(seed)
    if options.steps is not None:
        full = (piece for piece in _pieces(samples, size, chance, device) if len(piece) == size)
        yield from islice(full, options.steps)
        return
    for piece in islice(_pieces(samples, size, chance, device), number_of_batches(samples, options)):
        if len(piece) > 1 or size == 1 or single:
            yield piece


def _pieces(samples: int, size: int, chance: torch.Generator, device: torch.device | None) -> Iterator[Tensor]:
    for _ in count():
        order = torch.randperm(samples, generator=chance)
        yield from torch.split(order if device is None else order.to(device), size)
