"""SGD and Adam on one flat tensor, in place, with the arithmetic of torch.optim.

torch.optim is used only for other optimizers (`torch_optim.py`): its first step imports torch's compiler, which
takes 2.7 s of CPU time and 160 MB.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from pfl_node.learning.train_options import Options

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8
Again = Callable[[], Tensor]  # computes the gradient of the batch once more and returns the loss


class Optimizer(Protocol):
    def step(self, again: Again | None = None) -> None: ...
    def scale_lr(self, factor: float) -> None:
        """Use this multiple of the configured learning rate."""
        ...

    def state(self) -> dict[str, Any]:
        """The state as tensors and numbers, from which another optimizer of this kind continues."""
        ...

    def load(self, state: Mapping[str, Any]) -> None: ...


class Sgd:
    def __init__(self, flat: Tensor, grad: Tensor, *, lr: float, momentum: float, weight_decay: float) -> None:
        self.flat, self.grad = flat, grad
        self.lr, self.momentum, self.weight_decay = lr, momentum, weight_decay
        self._base = lr
        self._speed: Tensor | None = None

    def scale_lr(self, factor: float) -> None:
        self.lr = self._base * factor

    def state(self) -> dict[str, Any]:
        return {} if self._speed is None else {"speed": self._speed}

    def load(self, state: Mapping[str, Any]) -> None:
        if "speed" in state:
            self._speed = torch.empty_like(self.flat).copy_(state["speed"])

    def step(self, again: Again | None = None) -> None:  # noqa: ARG002
        grad = self.grad
        if self.weight_decay:
            grad.add_(self.flat, alpha=self.weight_decay)
        if self.momentum:
            if self._speed is None:
                self._speed = grad.clone()
            else:
                self._speed.mul_(self.momentum).add_(grad)
            grad = self._speed
        self.flat.add_(grad, alpha=-self.lr)


class Adam:
    def __init__(self, flat: Tensor, grad: Tensor, *, lr: float, weight_decay: float) -> None:
        self.flat, self.grad = flat, grad
        self.lr, self.weight_decay = lr, weight_decay
        self._mean, self._square = torch.zeros_like(flat), torch.zeros_like(flat)
        self._root = torch.empty_like(flat)
        self._base, self._t = lr, 0

    def scale_lr(self, factor: float) -> None:
        self.lr = self._base * factor

    def state(self) -> dict[str, Any]:
        return {"mean": self._mean, "square": self._square, "t": self._t}

    def load(self, state: Mapping[str, Any]) -> None:
        self._mean.copy_(state["mean"])
        self._square.copy_(state["square"])
        self._t = int(state["t"])

    def step(self, again: Again | None = None) -> None:  # noqa: ARG002
        self._t += 1
        grad = self.grad
        if self.weight_decay:
            grad.add_(self.flat, alpha=self.weight_decay)
        self._mean.lerp_(grad, 1 - BETA1)
        self._square.mul_(BETA2).addcmul_(grad, grad, value=1 - BETA2)
        torch.sqrt(self._square, out=self._root)
        scale = math.sqrt(1 - BETA2**self._t)
        self._root.div_(scale).add_(EPS)
        self.flat.addcdiv_(self._mean, self._root, value=-self.lr / (1 - BETA1**self._t))


def optimizer(options: Options, flat: Tensor, grad: Tensor) -> Optimizer:
    if options.optimizer.lower() == "adam":
        return Adam(flat, grad, lr=options.lr, weight_decay=options.weight_decay)
    return Sgd(flat, grad, lr=options.lr, momentum=options.momentum, weight_decay=options.weight_decay)
