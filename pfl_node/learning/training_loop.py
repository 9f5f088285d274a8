"""The training loop: one optimizer step of a workspace's model per batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import count, islice
from typing import TypeVar

import torch
from torch import Tensor

from pfl_node.learning.optim import optimizer
from pfl_node.learning.seeding import generator
from pfl_node.learning.train_options import Options, number_of_batches
from pfl_node.learning.workspace import Only, Workspace, stretches
from pfl_node.model import Model

Between = Callable[[], None]
T = TypeVar("T")  # a batch, or the indices of one


def nothing() -> None:
    pass


class TrainingRun:
    """Its optimizer keeps its state from one `run` to the next."""

    def __init__(
        self,
        space: Workspace,
        options: Options,
        *,
        only: Only = None,
        lone_samples: bool = False,
        anchor: Model | None = None,
    ) -> None:
        self._space, self._prox = space, options.prox
        self._only, self._lone_samples = only, lone_samples
        pieces = stretches(space.layout, only)
        self._rules = [optimizer(options, space.flat[p], space.grad[p]) for p in pieces]
        self._pulls: list[tuple[Tensor, Tensor, Tensor]] = []
        if anchor is not None and options.prox:
            target = torch.tensor(anchor.vector, device=space.flat.device)
            self._pulls = [(space.grad[p], space.flat[p], target[p]) for p in pieces]

    def run(self, batches: Iterable[T], loss: Callable[[T], Tensor], between: Between) -> None:
        """One step for the loss of each batch, in training mode."""

        def differentiate(batch: T) -> None:
            loss(batch).backward()  # type: ignore[no-untyped-call]

        self.follow(batches, differentiate, between)

    def follow(self, batches: Iterable[T], differentiate: Callable[[T], None], between: Between) -> None:
        """One step for each batch; `differentiate` writes the gradient into the workspace."""
        if not self._rules:
            return
        self._space.prepare(self._only, lone_samples=self._lone_samples)
        for batch in batches:
            self._space.grad.zero_()
            differentiate(batch)
            for grad, flat, target in self._pulls:
                grad.add_(flat - target, alpha=self._prox)
            for rule in self._rules:
                rule.step()
            between()


def batches(samples: int, options: Options, seed: int, *, single: bool = True) -> Iterator[Tensor]:
    """Index tensors, with a new permutation for every epoch.

    With epochs, the last, smaller batch of an epoch is included; with steps, all batches are full. A remainder of
    one sample is skipped if `single` is false (batch normalisation cannot use it).
    """
    size = min(options.batch, samples)
    chance = generator(seed)
    if options.steps is not None:
        full = (piece for piece in _pieces(samples, size, chance) if len(piece) == size)
        yield from islice(full, options.steps)
        return
    for piece in islice(_pieces(samples, size, chance), number_of_batches(samples, options)):
        if len(piece) > 1 or size == 1 or single:
            yield piece


def _pieces(samples: int, size: int, chance: torch.Generator) -> Iterator[Tensor]:
    for _ in count():
        yield from torch.split(torch.randperm(samples, generator=chance), size)
