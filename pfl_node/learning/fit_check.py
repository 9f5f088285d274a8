"""Check with two samples whether model, loss and data fit each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from pfl_node.errors import PflError, TaskError
from pfl_node.learning.auxiliary import IGNORED, classes_of
from pfl_node.learning.data import Samples

Loss = Callable[[Tensor, Tensor], Tensor]


def probe(
    task: str, module: nn.Module, loss: Loss, splits: Mapping[str, Samples], *, own_loss: bool
) -> int | None:
    """Raises TaskError if they do not fit; else the number of classes (None: the outputs are not class scores).
    Val and test are tried only if they differ in type from train."""
    like = classes = None
    for split, (x, y) in splits.items():
        kind = (x.shape[1:], x.dtype, y.shape[1:], y.dtype)
        if kind != like:
            output = _try(task, module, loss, splits, split, own_loss=own_loss)
        if like is None:
            like, classes = kind, classes_of(output, y, own_loss=own_loss)
    return classes


def _try(
    task: str, module: nn.Module, loss: Loss, splits: Mapping[str, Samples], split: str, *, own_loss: bool
) -> Tensor:
    x, y = (both[:2] for both in splits[split])
    if not own_loss and y.is_floating_point() and y.ndim < 2:
        raise TaskError(f"task {task}: the labels are {y.dtype}: give integers, or a loss for such labels")
    try:
        with torch.inference_mode():
            output: Tensor = module(x)
            if not own_loss and not y.is_floating_point() and output.ndim > 1:
                _check_labels(task, splits, output.shape[1])
            loss(output, y)
    except PflError:
        raise
    except Exception as error:  # the user's code may raise anything
        text = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise TaskError(
            f"task {task}: the model or the loss fails on the {split} data, "
            f"x {tuple(x.shape)} {x.dtype}, y {tuple(y.shape)} {y.dtype}: {text}"
        ) from error
    return output


def _check_labels(task: str, splits: Mapping[str, Samples], classes: int) -> None:
    for name, (_, y) in splits.items():
        if y.is_floating_point():
            continue
        low, high = int(y.min()), int(y.max())
        if high >= classes or (low < 0 and low != IGNORED):
            wrong = high if high >= classes else low
            raise TaskError(
                f"task {task}: the {name} data has a label {wrong}, the model knows 0 to {classes - 1}"
            )
