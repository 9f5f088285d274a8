"""Evaluate a module on data, in total or by sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pfl_node.errors import TaskError
from pfl_node.learning.auxiliary import IGNORED
from pfl_node.learning.eval_cache import Measured
from pfl_node.learning.samples import Batch, Samples, Tree, call, in_order, take
from pfl_node.learning.training_loop import Between
from pfl_node.types import Eval

Loss = Callable[[Any, Any], Tensor]
Figures = npt.NDArray[np.float64]


def mean_loss(given: Loss | None, output: Tree, y: Tree, *, by_sample: bool = False) -> Tensor:
    """The mean loss of a batch; None: the loss that the model computed, or cross-entropy. That is the mean over
    the labels of the batch or, with `by_sample`, over the samples, whatever labels other samples ignore."""
    if given is None:
        own: Tensor | None = None if isinstance(output, Tensor) else getattr(output, "loss", None)
        if own is not None:
            return own
        return _mean_of_samples(scores_of(output), y) if by_sample else cross_entropy(scores_of(output), y)
    loss = given(output, y)
    if not isinstance(loss, Tensor):
        raise TaskError(f"the loss returned a {type(loss).__name__}, not a tensor")
    return loss if loss.ndim == 0 else loss.mean()


def _mean_of_samples(scores: Tensor, y: Tensor) -> Tensor:
    """The mean over the samples of the mean over their own labels; 0 for a sample that ignores all of them."""
    losses = cross_entropy(scores, y, reduction="none").reshape(len(scores), -1)
    if y.is_floating_point():  # probabilities
        return losses.mean()
    labels = (y != IGNORED).reshape(len(scores), -1).sum(1).clamp(min=1)
    return (losses.sum(1) / labels).mean()


def scores_of(output: Tree) -> Tree:
    """The class scores in an output of Hugging Face models; any other output is returned as it is."""
    return output if isinstance(output, Tensor) else getattr(output, "logits", output)


def measure(
    module: nn.Module,
    data: Samples,
    draw: Tensor | None,
    loss: Loss | None,
    *,
    batch: int,
    classes: bool,
    between: Between,
    collect: Callable[[Tree, Tree], None] | None = None,
) -> Measured:
    """Means over the drawn samples (None: all); with `classes` also the true and the predicted classes. `collect`
    is called with the output and the labels of each batch. The figures stay on the device until the end, because
    reading a number waits for the device."""
    n = data.n if draw is None else len(draw)
    sizes, losses, rights = list[tuple[int, int]](), list[Tensor](), list[Tensor]()
    said, true = list[Tensor](), list[Tensor]()
    for some in data.batches(in_order(data.n, batch, draw)):
        with torch.inference_mode():
            output = call(module, some.x)
            scores = scores_of(output)
            losses.append(mean_loss(loss, output, some.target))
            if (guess := predicted(scores, some.y)) is not None:
                rights.append((guess == some.y).sum())
            sizes.append((some.n, some.y.numel() if guess is not None else 0))
            if classes:
                said.append(scores.argmax(1) if guess is None else guess)
                true.append(some.y)
            if collect:
                collect(output, some.target)
        between()
    pairs = (_joined(true), _joined(said)) if classes else None
    total = sum((one * many for one, (many, _) in zip(_read(losses), sizes, strict=True)), 0.0)
    share = float("nan")
    if len(rights) == len(losses):
        hits = zip(_read(rights), sizes, strict=True)
        share = sum((hit / labels * many for hit, (many, labels) in hits), 0.0) / n
    return Measured(Eval(total / n, share, n), pairs)


def _joined(tensors: list[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)


def _read(figures: list[Tensor]) -> list[float]:
    """Read all figures with one copy to the host."""
    if len(figures) == 1:
        return [float(figures[0])]
    found: list[float] = torch.stack(figures).tolist() if figures else []
    return found


def each(module: nn.Module, data: Samples, loss: Loss | None, *, batch: int) -> tuple[Figures, Figures]:
    """Loss and accuracy of every sample, computed independently as far as the module allows. Accuracies are NaN if
    labels are not classes."""
    losses, rights = [], []
    for some in data.batches(in_order(data.n, batch)):
        with torch.inference_mode():
            output = call(module, some.x)
            losses.append(_losses(module, loss, output, some))
            rights.append(_rights(scores_of(output), some))
    return torch.cat(losses).double().cpu().numpy(), torch.cat(rights).double().cpu().numpy()


def _losses(module: nn.Module, loss: Loss | None, output: Tree, batch: Batch) -> Tensor:
    if loss is None and getattr(output, "loss", None) is not None:  # the model computed the mean loss itself
        singles = [call(module, take(batch.x, slice(i, i + 1))) for i in range(batch.n)]
        return torch.stack([single.loss for single in singles])
    if loss is None:
        return cross_entropy(scores_of(output), batch.y, reduction="none").view(batch.n, -1).mean(1)
    rows = (slice(i, i + 1) for i in range(batch.n))
    return torch.stack([mean_loss(loss, take(output, row), take(batch.target, row)) for row in rows])


def _rights(output: Tree, batch: Batch) -> Tensor:
    if (guess := predicted(output, batch.y)) is None:
        return torch.full((batch.n,), float("nan"))
    same: Tensor = guess == batch.y
    return same.view(batch.n, -1).double().mean(1)


def predicted(output: Tree, y: Tree) -> Tensor | None:
    """The predicted classes, in the shape of the labels; None if labels are not classes."""
    if (
        not isinstance(output, Tensor)
        or not isinstance(y, Tensor)
        or y.is_floating_point()
        or output.ndim != y.ndim + 1
        or output.shape[1] == 1
    ):
        return None
    guess = output.argmax(1)
    return guess if guess.shape == y.shape else None


def draw_samples(n: int, samples: int | None, own: bool, chance: torch.Generator) -> Tensor | None:
    """The indices of the samples to score on, out of n; None: all."""
    wanted = n if samples is None else min(samples, n)
    if wanted < n:
        return torch.randperm(n, generator=chance)[:wanted]
    return torch.randint(n, (n,), generator=chance) if own else None
