"""Evaluate a module on data, in total or by sample."""

from __future__ import annotations

from collections.abc import Callable
from math import isnan

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pfl_node.learning.data import Samples
from pfl_node.learning.eval_cache import Measured
from pfl_node.learning.training_loop import Between
from pfl_node.types import Eval

Loss = Callable[[Tensor, Tensor], Tensor]
Figures = npt.NDArray[np.float64]


def mean_loss(given: Loss | None, output: Tensor, y: Tensor) -> Tensor:
    """The mean loss of a batch; None: cross-entropy."""
    if given is None:
        return cross_entropy(output, y)
    loss = given(output, y)
    return loss if loss.ndim == 0 else loss.mean()


def measure(
    module: nn.Module,
    data: Samples,
    draw: Tensor | None,
    loss: Loss | None,
    *,
    batch: int,
    classes: bool,
    between: Between,
) -> Measured:
    """Means over the drawn samples (None: all); with `classes` also the predicted classes."""
    n = data.n if draw is None else len(draw)
    total, right, said = 0.0, 0.0, []
    for start in range(0, n, batch):
        some = slice(start, start + batch)
        index = some if draw is None else draw[some]
        with torch.inference_mode():
            y = data.y[index]
            output = module(data.x[index])
            total += mean_loss(loss, output, y).item() * len(y)
            right += accuracy(output, y) * len(y)
            said += [output.argmax(1)] if classes else []
        between()
    return Measured(Eval(total / n, right / n, n), torch.cat(said) if said else None)


def each(module: nn.Module, data: Samples, loss: Loss | None, *, batch: int) -> tuple[Figures, Figures]:
    """Loss and accuracy of every sample, computed independently as far as the module allows. Accuracies are NaN if
    labels are not classes."""
    losses, rights = [], []
    for start in range(0, data.n, batch):
        some = slice(start, start + batch)
        with torch.inference_mode():
            y = data.y[some]
            output = module(data.x[some])
            losses.append(_losses(loss, output, y))
            rights.append(_rights(output, y))
    return torch.cat(losses).double().cpu().numpy(), torch.cat(rights).double().cpu().numpy()


def _losses(loss: Loss | None, output: Tensor, y: Tensor) -> Tensor:
    if loss is None:
        return cross_entropy(output, y, reduction="none").view(len(y), -1).mean(1)
    pairs = zip(torch.split(output, 1), torch.split(y, 1), strict=True)
    return torch.stack([mean_loss(loss, o, t) for o, t in pairs])


def _rights(output: Tensor, y: Tensor) -> Tensor:
    if isnan(accuracy(output, y)):
        return torch.full((len(y),), float("nan"))
    return (output.argmax(1) == y).view(len(y), -1).double().mean(1)


def accuracy(output: Tensor, y: Tensor) -> float:
    """The share of correct predictions; NaN if labels are not classes."""
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
