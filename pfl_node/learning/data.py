"""A node's data as validated tensors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pfl_node.errors import TaskError
from pfl_node.learning.samples import StackedSamples
from pfl_node.learning.seeding import generator
from pfl_node.learning.task import Data, Task

VAL_SHARE = 0.1
VAL_FROM = 10  # samples; with fewer, validation uses the training data
SPLITS = ("train", "val", "test")


def complete(task: Task, seed: int) -> Task:
    """The task with tensors for all three splits and for the auxiliary samples. A missing val is a random tenth of
    train (all of train if that has fewer than 10 samples); a missing test is val."""
    train = tensors(task.train, task.name, "train")
    val = None if task.val is None else tensors(task.val, task.name, "val")
    test = None if task.test is None else tensors(task.test, task.name, "test")
    more = None if task.auxiliary is None else inputs(task.auxiliary, train.x, task.name)
    labels = None if task.auxiliary_labels is None else _tensor(task.auxiliary_labels, f"task {task.name}: labels")
    if labels is not None and (more is None or len(labels) != len(more)):
        raise TaskError(f"task {task.name}: the auxiliary data and its labels are not of equal length")
    if val is None:
        train, val = split(train, seed)
    test = val if test is None else test
    return replace(task, train=train, val=val, test=test, auxiliary=more, auxiliary_labels=labels)


def split(data: Data, seed: int) -> tuple[Data, Data]:
    n = len(data.x)
    if n < VAL_FROM:
        return data, data
    order = torch.randperm(n, generator=generator(seed))
    held = max(1, round(VAL_SHARE * n))
    kept, out = order[held:].sort().values, order[:held].sort().values
    return Data(data.x[kept], data.y[kept]), Data(data.x[out], data.y[out])


def tensors(data: Any, task: str, name: str) -> Data:
    """Convert any supported format to float32 or integer tensors; raises TaskError."""
    where = f"task {task}: the {name} data"
    x, y = _pair(data, where)
    x, y = _tensor(x, f"{where}'s x"), _tensor(y, f"{where}'s y")
    y = y if y.is_floating_point() else y.long()
    if x.ndim == 0 or y.ndim == 0:
        raise TaskError(f"{where} must be arrays with one row per sample")
    if len(x) != len(y):
        raise TaskError(f"{where} has {len(x)} samples in x but {len(y)} labels in y")
    if len(x) == 0:
        raise TaskError(f"{where} is empty")
    return Data(x, y)


def inputs(data: Any, like: Tensor, task: str) -> Tensor:
    """Unlabelled samples of the same type as the training data; labels are ignored."""
    where = f"task {task}: the auxiliary data"
    if isinstance(data, torch.utils.data.Dataset):
        data = _stack_inputs(data, where)
    elif isinstance(data, tuple | list) and len(data) == 2:
        data = data[0]
    x = _tensor(data, where)
    if x.ndim == 0 or len(x) == 0:
        raise TaskError(f"{where} is empty: give an array with a row for each sample")
    if x.shape[1:] != like.shape[1:] or x.dtype != like.dtype:
        raise TaskError(f"{where} has samples {_kind(x)}, the train data has {_kind(like)}: they must be equal")
    return x


def _kind(x: Tensor) -> str:
    return f"{tuple(x.shape[1:])} {x.dtype}"


def _pair(data: Any, where: str) -> tuple[Any, Any]:
    if isinstance(data, torch.utils.data.Dataset):
        return _stack(data, where)
    if isinstance(data, tuple | list) and len(data) == 2:
        return data[0], data[1]
    raise TaskError(f"{where} is a {type(data).__name__}: give (x, y) or a torch Dataset of (x, y)")


def _stack(data: Any, where: str) -> tuple[Any, Any]:
    """All samples of a Dataset."""
    try:
        rows = [data[i] for i in range(len(data))]
        xs = [torch.as_tensor(x) for x, _ in rows]
        ys = [torch.as_tensor(y) for _, y in rows]
        return (torch.stack(xs), torch.stack(ys)) if rows else (torch.empty(0), torch.empty(0))
    except (TypeError, ValueError, RuntimeError) as error:
        raise TaskError(f"{where}: the Dataset's samples cannot be stacked as (x, y): {error}") from None


def _stack_inputs(data: Any, where: str) -> Tensor:
    """The inputs of a Dataset whose rows are (x, y), (x,) or x."""
    try:
        rows = [data[i] for i in range(len(data))]
        xs = [torch.as_tensor(row[0] if isinstance(row, tuple | list) else row) for row in rows]
        return torch.stack(xs) if xs else torch.empty(0)
    except (TypeError, ValueError, RuntimeError, IndexError) as error:
        raise TaskError(f"{where}: the Dataset's inputs cannot be stacked: {error}") from None


def _tensor(values: Any, where: str) -> Tensor:
    try:
        tensor = values.detach().cpu() if isinstance(values, Tensor) else torch.as_tensor(np.array(values))
    except (TypeError, ValueError, RuntimeError):
        kind = getattr(values, "dtype", type(values).__name__)
        raise TaskError(f"{where} is {kind}: only numbers are supported") from None
    if tensor.is_complex():
        raise TaskError(f"{where} is {tensor.dtype}: only real numbers are supported")
    if tensor.is_floating_point():
        tensor = tensor.float()
        if not _finite(tensor):
            raise TaskError(f"{where} contains a NaN or an infinity")
        return tensor
    return tensor if tensor.dtype in (torch.uint8, torch.bool) else tensor.long()


def _finite(tensor: Tensor) -> bool:
    """Sum in float32 first, which is thirty times as fast, and in float64 only if that overflows."""
    sums = (tensor.sum(dtype=kind) for kind in (torch.float32, torch.float64))
    return any(bool(torch.isfinite(total)) for total in sums)


def settle(data: Data, device: torch.device, *, images: bool) -> StackedSamples:
    """Move data to the device where it is used."""
    x, y = data.x.to(device), data.y.to(device)
    return StackedSamples(channels_last(x) if images else x, y)


def channels_last(x: Tensor) -> Tensor:
    """Images in the memory format in which convolutions are fastest; other data unchanged."""
    if x.ndim != 4 or not x.is_floating_point():
        return x
    n, c, h, w = x.shape
    return x.permute(0, 2, 3, 1).contiguous().as_strided((n, c, h, w), (h * w * c, 1, w * c, c))
