"""Check with two samples whether model, loss and data fit each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from pfl_node.errors import PflError, TaskError
from pfl_node.learning.auxiliary import IGNORED, classes_of
from pfl_node.learning.samples import Batch, Samples, call, first, shape_of, take

Loss = Callable[[Any, Any], Tensor]
PROBED = 2  # samples


def probe(
    task: str, module: nn.Module, loss: Loss, splits: Mapping[str, Samples], *, own_loss: bool
) -> int | None:
    """Raises TaskError if they do not fit; else the number of classes (None: the outputs are not class scores).
    Val and test are tried only if they differ in type from train."""
    like = classes = None
    for split, data in splits.items():
        batch = first(data, PROBED)
        kind = tuple(shape_of(take(tree, slice(1))) for tree in (batch.x, batch.y))
        if kind != like:
            output = _try(task, module, loss, splits, split, batch, own_loss=own_loss)
        if like is None:
            like, classes = kind, classes_of(output, batch.y, own_loss=own_loss)
    return classes


def _try(
    task: str,
    module: nn.Module,
    loss: Loss,
    splits: Mapping[str, Samples],
    split: str,
    batch: Batch,
    *,
    own_loss: bool,
) -> Tensor:
    y = batch.y
    hard = isinstance(y, Tensor) and not y.is_floating_point()
    if not own_loss and not hard and (not isinstance(y, Tensor) or y.ndim < 2):
        kind = y.dtype if isinstance(y, Tensor) else shape_of(y)
        raise TaskError(f"task {task}: the labels are {kind}: give integers, or a loss for such labels")
    try:
        with torch.inference_mode():
            output: Tensor = call(module, batch.x)
            if not own_loss and hard and output.ndim > 1:
                _check_labels(task, splits, output.shape[1])
            loss(output, batch.target)
    except PflError:
        raise
    except Exception as error:  # the user's code may raise anything
        text = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise TaskError(
            f"task {task}: the model or the loss fails on the {split} data, "
            f"x {shape_of(batch.x)}, y {shape_of(y)}: {text}"
        ) from error
    return output


def _check_labels(task: str, splits: Mapping[str, Samples], classes: int) -> None:
    for name, data in splits.items():
        y = data.labels
        if y is None or y.is_floating_point():
            continue
        low, high = int(y.min()), int(y.max())
        if high >= classes or (low < 0 and low != IGNORED):
            wrong = high if high >= classes else low
            raise TaskError(
                f"task {task}: the {name} data has a label {wrong}, the model knows 0 to {classes - 1}"
            )
