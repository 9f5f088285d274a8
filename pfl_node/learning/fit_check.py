"""Check with two samples whether model, loss and data fit each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from warnings import catch_warnings

import torch
from torch import Tensor, nn

from pfl_node.errors import PflError, TaskError
from pfl_node.learning import fit_hints
from pfl_node.learning.auxiliary import IGNORED, classes_of
from pfl_node.learning.samples import Batch, Samples, call, each_leaf, first, leaves, shape_of, take
from pfl_node.learning.scoring import scores_of
from pfl_node.plugin import in_a_line, line_of

Loss = Callable[[Any, Any], Tensor]
PROBED = 2  # samples
BINARY = (
    "give it two outputs, or a loss for one: `loss`: lambda output, y: "
    "nn.BCEWithLogitsLoss()(output.flatten(), y.float())"
)


def probe(
    task: str, module: nn.Module, loss: Loss, splits: Mapping[str, Samples], *, own_loss: bool, trains: bool
) -> int | None:
    """Raises TaskError if they do not fit, or if a loss that `trains` has no gradient. Returns the number of
    classes (None: the outputs are not class scores). Val and test are tried only if they differ in type from
    train. The module's parameters require a gradient."""
    like = classes = None
    for split, data in splits.items():
        batch = first(data, PROBED)
        kind = tuple(shape_of(take(tree, slice(1))) for tree in (batch.x, batch.y))
        if kind != like:
            with torch.set_grad_enabled(trains), catch_warnings(action="ignore"):
                output = _output(f"task {task}: ", module, split, batch)
            _try(f"task {task}: ", loss, splits, split, batch, output, own_loss=own_loss)
            if trains:
                _check_outputs(f"task {task}: ", module, split, batch, output)
            if own_loss and trains:
                _check_gradient(f"task {task}: ", split, loss, output, batch)
        if like is None:
            like, classes = kind, classes_of(scores_of(output), batch.y, own_loss=own_loss)
    return classes


def _try(
    task: str,
    loss: Loss,
    splits: Mapping[str, Samples],
    split: str,
    batch: Batch,
    output: Any,
    *,
    own_loss: bool,
) -> None:
    with torch.no_grad(), catch_warnings(action="ignore"):  # torch warns about shapes that are refused below
        scores = scores_of(output)
        if not own_loss and getattr(output, "loss", None) is None:
            _check_labels(task, splits, scores, batch)
        try:
            loss(output, batch.target)
        except PflError as error:
            raise TaskError(f"{task}{error}") from None
        except Exception as error:  # the user's code may raise anything
            hint = fit_hints.of_loss(scores, batch, own_loss=own_loss)
            hint = hint or (fit_hints.of_order(loss, output, batch) if own_loss else "")
            raise _failed(task, "loss", split, batch, error, hint, scores) from error
        if own_loss and fit_hints.broadcasts(loss, scores, batch.y):
            raise TaskError(
                f"{task}the loss compares each output with each label, because the output {shape_of(scores)} and "
                f"y {shape_of(batch.y)} differ in shape: use output.squeeze(-1) or y.view_as(output) in the loss"
            )


def _check_outputs(task: str, module: nn.Module, split: str, batch: Batch, output: Any) -> None:
    """Raises TaskError if no gradient could reach the model, so that nothing would be learned. A forward may
    leave it out in evaluation mode."""
    if _learns(output):
        return
    module.train()
    output = _output(task, module, split, batch)
    module.eval()
    if not _learns(output):
        raise TaskError(
            f"{task}the outputs of the model have no gradient: leave out .detach(), argmax, comparisons and "
            "torch.no_grad() in its forward"
        )


def _learns(output: Any) -> bool:
    """Whether a gradient reaches the model, or the output is of an unknown kind."""
    found = output if isinstance(output, Tensor | tuple | list | dict) else scores_of(output)
    tensors = [leaf for leaf in leaves(found) if isinstance(leaf, Tensor)]
    return not tensors or any(tensor.requires_grad for tensor in tensors)


def _check_gradient(task: str, split: str, loss: Loss, output: Any, batch: Batch) -> None:
    """Raises TaskError if the loss passes no gradient to the outputs, so that nothing would be learned."""
    if type(output) not in (Tensor, tuple, list, dict):  # a class of the model's library
        return
    with torch.enable_grad():
        leaf = each_leaf(
            output, lambda t: t.detach().clone().requires_grad_(t.is_floating_point() or t.is_complex())
        )
        if not any(t.requires_grad for t in leaves(leaf)):
            return
        try:
            learns = loss(leaf, batch.target).requires_grad
        except Exception as error:  # the user's code may raise anything
            raise _failed(task, "loss", split, batch, error, "", output) from error
    if not learns:
        raise TaskError(
            f"{task}the loss has no gradient: leave out .detach(), .item(), argmax, comparisons and "
            "torch.no_grad() between the output and the loss"
        )


def _output(task: str, module: nn.Module, split: str, batch: Batch) -> Any:
    with fit_hints.entered(module) as seen:
        try:
            return call(module, batch.x)
        except PflError:
            raise
        except Exception as error:  # the user's code may raise anything
            raise _failed(task, "model", split, batch, error, fit_hints.of_layer(seen)) from error


def _failed(
    task: str, what: str, split: str, batch: Batch, error: Exception, hint: str, output: Any = None
) -> TaskError:
    shapes = f"x {shape_of(batch.x)}, y {shape_of(batch.y)}"
    shapes += "" if output is None else f", output {shape_of(output)}"
    why = hint or in_a_line(error)
    return TaskError(f"{task}the {what} fails{line_of(error)} on the {split} data, {shapes}: {why}")


def _check_labels(task: str, splits: Mapping[str, Samples], output: Any, batch: Batch) -> None:
    """Check the labels for the default loss, cross-entropy."""
    y = batch.y
    if not isinstance(y, Tensor):
        what = "there are no labels" if y is None else f"the labels are {shape_of(y)}"
        raise TaskError(f"{task}{what}: cross-entropy needs integers; give a `loss` of (output, labels or else x)")
    if y.is_floating_point() and y.ndim < 2:
        raise TaskError(
            f"{task}the labels are {y.dtype}: cross-entropy needs integers; convert them with y.long() or, for "
            "regression, give a `loss` such as nn.MSELoss()"
        )
    if not isinstance(output, Tensor) or y.is_floating_point() or y.ndim == output.ndim:
        return
    if output.ndim == 3 and output.shape[:2] == y.shape:
        raise TaskError(
            f"{task}the output {shape_of(output)} has the class scores in its last dimension, cross-entropy takes "
            "them in dimension 1: `loss`: lambda output, y: cross_entropy(output.transpose(1, 2), y)"
        )
    classes = output.shape[1] if output.ndim > 1 else 1
    for name, data in splits.items():
        known = data.labels if data.labels is not None else first(data, PROBED).y
        _check_range(task, name, known, classes)


def _check_range(task: str, name: str, y: Tensor, classes: int) -> None:
    if y.is_floating_point():
        return
    low, high = int(y.min()), int(y.max())
    if classes == 1 and high <= 1:
        raise TaskError(f"{task}the model has one output and the labels are 0 and 1: {BINARY}")
    if high < classes and (low >= 0 or low == IGNORED):
        return
    wrong = high if high >= classes else low
    hint = ": labels count from 0, subtract 1" if low == 1 and high == classes else ""
    raise TaskError(
        f"{task}the {name} data has a label {wrong}, the model has {classes} outputs, for labels 0 to "
        f"{classes - 1}{hint}"
    )
