"""A place's data as tensors: taken from what a task brings, checked, and completed. Knows no model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pfl_node.errors import TaskError
from pfl_node.learning.seeding import generator
from pfl_node.learning.task import Data, Task

VAL_SHARE = 0.1
VAL_FROM = 10  # samples; with fewer, the training data is the validation data too
SPLITS = ("train", "val", "test")


class Samples(NamedTuple):
    """Data on its device. Images may lie in memory with the channels last."""

    x: Tensor
    y: Tensor

    @property
    def n(self) -> int:
        return self.x.shape[0]


def complete(task: Task, seed: int) -> Task:
    """The task with tensors for all three splits and for the auxiliary samples, if it has any. A missing val is a
    tenth of train, drawn with the seed (all of train when that has fewer than 10 samples); a missing test is
    val."""
    train = tensors(task.train, task.name, "train")
    val = None if task.val is None else tensors(task.val, task.name, "val")
    test = None if task.test is None else tensors(task.test, task.name, "test")
    more = None if task.auxiliary is None else inputs(task.auxiliary, train.x, task.name)
    if val is None:
        train, val = split(train, seed)
    return replace(task, train=train, val=val, test=val if test is None else test, auxiliary=more)


def split(data: Data, seed: int) -> tuple[Data, Data]:
    """Train and val."""
    n = len(data.x)
    if n < VAL_FROM:
        return data, data
    order = torch.randperm(n, generator=generator(seed))
    held = max(1, round(VAL_SHARE * n))
    kept, out = order[held:].sort().values, order[:held].sort().values
    return Data(data.x[kept], data.y[kept]), Data(data.x[out], data.y[out])


def tensors(data: Any, task: str, name: str) -> Data:
    """Any of the shapes a user may give, as float32 or integer tensors; says what is wrong with it."""
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
    """Samples without labels, which must be of the kind that is trained on; labels that come along are ignored."""
    where = f"task {task}: the auxiliary data"
    if isinstance(data, torch.utils.data.Dataset):
        data = _stack_inputs(data, where)
    elif isinstance(data, tuple | list) and len(data) == 2:
        data = data[0]
    x = _tensor(data, where)
    if x.ndim == 0 or len(x) == 0:
        raise TaskError(f"{where} is empty: give an array with a row for each sample")
    if x.shape[1:] != like.shape[1:] or x.dtype != like.dtype:
        raise TaskError(f"{where} has samples {_kind(x)}, the train data has {_kind(like)}: they must be alike")
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
    """All samples of a Dataset, read once."""
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
        raise TaskError(f"{where} is {kind}: only numbers can be learned from") from None
    if tensor.is_complex():
        raise TaskError(f"{where} is {tensor.dtype}: only real numbers can be learned from")
    if tensor.is_floating_point():
        tensor = tensor.float()
        if not _finite(tensor):
            raise TaskError(f"{where} has a NaN or an infinity in it")
        return tensor
    return tensor if tensor.dtype in (torch.uint8, torch.bool) else tensor.long()


def _finite(tensor: Tensor) -> bool:
    """Thirty times as fast as in float64 alone, where only a sum that is too large for float32 is asked again."""
    sums = (tensor.sum(dtype=kind) for kind in (torch.float32, torch.float64))
    return any(bool(torch.isfinite(total)) for total in sums)


def settle(data: Data, device: torch.device, *, images: bool) -> Samples:
    """Data where it will be used, once."""
    x, y = data.x.to(device), data.y.to(device)
    return Samples(channels_last(x) if images else x, y)


def channels_last(x: Tensor) -> Tensor:
    """Images as convolutions read them fastest; anything else as it is."""
    if x.ndim != 4 or not x.is_floating_point():
        return x
    n, c, h, w = x.shape
    return x.permute(0, 2, 3, 1).contiguous().as_strided((n, c, h, w), (h * w * c, 1, w * c, c))
