"""What a task's own training loop `fit(model, work)` gets besides the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from pfl_node.learning.samples import Batch, Samples
from pfl_node.learning.train_options import Options, number_of_batches
from pfl_node.learning.training_loop import Between, batches, lr_factors
from pfl_node.learning.workspace import Only, Workspace
from pfl_node.model import Model

Fit = Callable[[nn.Module, "Work"], object]


class Work:
    """One training. The parameters to train have `requires_grad`, and the model is in training mode."""

    def __init__(
        self,
        space: Workspace,
        train: Samples,
        options: Options,
        *,
        only: Only,
        seed: int,
        round: int,
        anchor: Model,
        state: dict[str, Any],
        loss: Callable[[Any, Any], Tensor],
        between: Between,
    ) -> None:
        self.round = round
        self.seed = seed
        self.device = space.flat.device
        self.only = only  # "core" or "head": only this part is kept; None: everything is
        self.prox = options.prox  # weight of the proximal term towards `anchor`
        self.options = options  # optimizer, lr, batch, epochs, steps …, as the settings say
        self.state = state  # tensors and plain values, kept over rounds, checkpoints and restarts
        self.loss = loss  # the task's loss, or cross-entropy
        self.between = between  # serves peers; raises if the node stops
        self.number_of_batches = number_of_batches(train.n, options)
        self._space, self._train, self._anchor = space, train, anchor

    @property
    def lr(self) -> float:
        """The learning rate of this round."""
        rate = lr_factors(self.options, self.round, self._train.n)
        return self.options.lr * (rate(0) if rate else 1.0)

    def batches(self) -> Iterator[Batch]:
        """The batches of this training, in an order that follows from the seed, on the device. Serves peers after
        each."""
        chosen = batches(self._train.n, self.options, self.seed, single=not self._space.batch_norms)
        for batch in self._train.batches(chosen, self.seed):
            yield batch
            self.between()

    @property
    def anchor(self) -> dict[str, Tensor]:
        """The tensors of the model that the proximal term pulls to, by name."""
        flat = torch.tensor(self._anchor.vector, device=self.device)
        return {entry.name: flat[span].view(entry.shape) for entry, span in self._anchor.layout.spans()}

    def proximal(self) -> Tensor:
        """prox / 2 times the squared distance of the trained parameters to the anchor; add it to the loss."""
        anchor, total = self.anchor, torch.zeros((), device=self.device)
        for name, param in self._space.module.named_parameters():
            if param.requires_grad and name in anchor:
                total = total + (param - anchor[name]).square().sum()
        return self.prox / 2 * total


@contextmanager
def lent(module: nn.Module) -> Iterator[None]:
    """A user's loop may drop or replace gradients and move parameters, and the module is shared: restore them."""
    before = [(p, p.data, p.grad, p.requires_grad) for p in module.parameters()]
    hooks = {id(m): vars(m).copy() for m in module.modules()}
    try:
        yield
    finally:
        for param, data, grad, trained in before:
            if param.data_ptr() != data.data_ptr() or param.dtype != data.dtype:
                data.copy_(param.data)
                param.data = data
            param.grad, param.requires_grad = grad, trained
        for part in module.modules():
            known = hooks.get(id(part), {})
            for name in [n for n in vars(part) if n not in known]:
                delattr(part, name)  # such as a reference to the trainer
