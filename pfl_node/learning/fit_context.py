"""The `work` argument of a task's own training loop `fit(model, work)`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from pfl_node.errors import TaskError
from pfl_node.learning.penalties import Term
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
        correction: Model | None = None,
        penalty: Term | None = None,
    ) -> None:
        self.round = round
        self.seed = seed
        self.device = space.flat.device
        self.only = only  # "core" or "head": only this part is kept; None: everything is
        self.prox = options.prox  # weight of the proximal term towards `anchor`
        self.options = options  # optimizer, lr, batch, epochs, steps …, from the settings
        self.state = state  # tensors and plain values, kept over rounds, checkpoints and restarts
        self.loss = loss  # the task's loss, or cross-entropy
        self.between = between  # serves peers; raises if the node stops
        self.number_of_batches = number_of_batches(train.n, options)
        self._space, self._train, self._anchor = space, train, anchor
        self._correction, self._penalty = correction, penalty
        self._corrected = self._corrects_itself = self._penalised = False

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
        return self._tensors(self._anchor)

    def _tensors(self, model: Model) -> dict[str, Tensor]:
        flat = torch.tensor(model.vector, device=self.device)
        return {entry.name: flat[span].view(entry.shape) for entry, span in model.layout.spans()}

    def proximal(self) -> Tensor:
        """prox / 2 times the squared distance of the trained parameters to the anchor; add it to the loss."""
        anchor, total = self.anchor, torch.zeros((), device=self.device)
        for name, param in self._space.module.named_parameters():
            if param.requires_grad and name in anchor:
                total = total + (param - anchor[name]).square().sum()
        return self.prox / 2 * total

    @property
    def correction(self) -> dict[str, Tensor]:
        """The correction that the policy adds to every gradient, by name. A step of a torch optimizer adds it by
        itself, unless the loop reads this."""
        self._corrects_itself = True
        return {} if self._correction is None else self._tensors(self._correction)

    def penalty(self, batch: Batch, output: Any) -> Tensor:
        """The term of the loss that the policy asks for; add it to the loss of each batch."""
        self._penalised = True
        return torch.zeros((), device=self.device) if self._penalty is None else self._penalty(batch, output)

    @contextmanager
    def corrected_steps(self) -> Iterator[None]:
        """Add the correction to the gradients in each step of a torch optimizer: after the loop has unscaled and
        clipped them, and once for all batches that it accumulates. A closure, as Lightning uses it, computes the
        gradients within the step."""
        if self._correction is None:
            yield
            return
        named, tensors = self._space.module.named_parameters(), self._tensors(self._correction)
        trained = {id(p): tensors[name] for name, p in named if p.requires_grad and name in tensors}

        def before_step(optimizer: Any, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
            if self._corrects_itself:
                return None
            if isinstance(optimizer, torch.optim.LBFGS):
                raise TaskError(
                    "LBFGS repeats a batch, so that gradients cannot be corrected: use another optimizer"
                )
            closure = given[1] if len(given) > 1 else named.get("closure")
            if closure is None:
                correct(optimizer)
                return None

            def corrected() -> Any:
                loss = closure()
                correct(optimizer)
                return loss

            return (optimizer, corrected), {}

        def correct(optimizer: Any) -> None:
            for param in (p for group in optimizer.param_groups for p in group["params"] if id(p) in trained):
                vector = trained[id(param)].to(param)
                param.grad = vector.clone() if param.grad is None else param.grad.add_(vector)
                self._corrected = True

        hook = register_optimizer_step_pre_hook(before_step)
        try:
            yield
        finally:
            hook.remove()

    def check(self, task: str) -> None:
        """After the loop: raise if it left out the policy's penalty or correction."""
        if self._penalty is not None and not self._penalised:
            raise TaskError(f"task {task}: its training loop leaves out the policy's penalty: add work.penalty()")
        if self._correction is not None and not (self._corrected or self._corrects_itself):
            raise TaskError(
                f"task {task}: its training loop steps no torch optimizer, so the policy's correction was not "
                "applied: add work.correction to the gradients"
            )


@contextmanager
def restored_after(module: nn.Module) -> Iterator[None]:
    """Restore the storage of the shared module's parameters and gradients: a user's loop may move or drop it."""
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
