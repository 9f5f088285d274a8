"""A node's data: validated tensors, or rows that are read when they are needed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pfl_node.errors import TaskError
from pfl_node.learning.collate import CollateError, as_model_dtype, check_finite, is_text, kind_of, whole_labels
from pfl_node.learning.in_memory import kept, labelled, taken, unusable
from pfl_node.learning.lazy_samples import LazySamples, Loader
from pfl_node.learning.rows import Columns, Rows, columns_of
from pfl_node.learning.samples import (
    Samples,
    StackedSamples,
    Tree,
    channels_last,
    each_leaf,
    leaves,
    size_of,
)
from pfl_node.learning.seeding import generator
from pfl_node.learning.task import ColumnData, Data, Task
from pfl_node.settings import DataSettings

VAL_SHARE = 0.1
VAL_FROM = 10  # samples; with fewer, validation uses the training data
SPLITS = ("train", "val", "test")

Split = Data | Rows


def complete(task: Task, seed: int, settings: DataSettings | None = None) -> Task:
    """The task with all three splits, each as tensors or as rows to be read, and with the auxiliary samples. A
    missing val is a random tenth of train (all of train if that has fewer than 10 samples); a missing test is
    val."""
    settings = settings or DataSettings()
    train = read(task, "train", settings)
    val = None if task.val is None else read(task, "val", settings)
    test = None if task.test is None else read(task, "test", settings)
    more = None if task.auxiliary is None else inputs(task.auxiliary, train, task.name)
    labels = None if task.auxiliary_labels is None else _tensor(task.auxiliary_labels, f"task {task.name}: labels")
    if labels is not None and (more is None or len(labels) != len(more)):
        raise TaskError(f"task {task.name}: the auxiliary data and its labels are not of equal length")
    if val is None:
        train, val = split(train, seed)
    test = val if test is None else test
    return replace(task, train=train, val=val, test=test, auxiliary=more, auxiliary_labels=labels)


def split(data: Any, seed: int) -> tuple[Any, Any]:
    """A random tenth is held out for validation."""
    n = len(data) if isinstance(data, Rows) else size_of(data.x)
    if n < VAL_FROM:
        return data, data
    order = torch.randperm(n, generator=generator(seed))
    held = max(1, round(VAL_SHARE * n))
    mine, out = order[held:].sort().values, order[:held].sort().values
    if isinstance(data, Rows):
        return data.at(mine), data.at(out)
    return taken(data, mine), taken(data, out)


def read(task: Task, name: str, settings: DataSettings) -> Split:
    """A split of the task in its final form: tensors or rows."""
    data, where = getattr(task, name), f"task {task.name}: the {name} data"
    if isinstance(data, Rows):
        return data
    if is_dataset(data):
        rows = rows_of(data, where, task)
        return kept(rows, settings)
    if task.collate is not None:
        raise TaskError(f"{where} is in arrays, which `collate` is not applied to: give a Dataset")
    return tensors(data, where, task)


def is_dataset(data: Any) -> bool:
    """Whether the data is read row by row: anything with a length and rows by number, except arrays and (x, y)."""
    if isinstance(data, str | tuple | Tensor | np.ndarray | Mapping) or hasattr(data, "iloc"):
        return False
    if isinstance(data, list):
        return len(data) != 2 and all(isinstance(row, tuple | Mapping) for row in data)
    return hasattr(data, "__getitem__") and hasattr(data, "__len__")


def rows_of(data: Any, where: str, task: Task) -> Rows:
    if problem := unusable(data):
        raise TaskError(f"{where} is {problem}")
    try:
        n = len(data)
    except TypeError as error:
        raise TaskError(f"{where} has no length: {error}; give a Dataset with __len__ and __getitem__") from None
    if n == 0:
        raise TaskError(f"{where} is empty")
    rows = Rows(data, where, collate=task.collate)
    if task.collate is not None:
        return replace(rows, columns=Columns(*map(_tupled, (task.inputs, task.target))))
    return replace(rows, columns=columns_of(rows.raw([0])[0], task.inputs, task.target, where))


def _tupled(names: Any) -> Any:
    return names if names is None or isinstance(names, str) else tuple(names)


def tensors(data: Any, where: str, task: Task | None = None) -> Data:
    """Convert arrays in any supported structure to tensors; raises TaskError."""
    if problem := unusable(data):
        raise TaskError(f"{where} is {problem}")
    columns = None
    if isinstance(data, ColumnData):
        return data
    if isinstance(data, Mapping):
        columns = columns_of(data, task and task.inputs, task and task.target, where)
        assert columns is not None
        x, y = columns.split(data)
    elif isinstance(data, tuple | list) and len(data) == 2:
        x, y = data
    else:
        table = hasattr(data, "iloc") and hasattr(data, "columns")
        split = "(x, y), such as (table[inputs], table['label'])" if table else "(x, y)"
        raise TaskError(
            f"{where} is a {type(data).__name__}: give {split}, or a Dataset with __len__ and __getitem__"
        )
    x, y = _tree(x, f"{where}'s x"), _tree(y, f"{where}'s y")
    y = each_leaf(y, whole_labels)
    _check_lengths(x, y, where)
    return Data(x, y) if columns is None else labelled(x, y, columns)


def _check_lengths(x: Tree, y: Tree, where: str) -> None:
    if any(t.ndim == 0 for t in (*leaves(x), *leaves(y))) or not leaves(x):
        raise TaskError(f"{where} must be arrays with one row per sample")
    n = size_of(x)
    for leaf in leaves(x):
        if len(leaf) != n:
            raise TaskError(f"{where} has inputs of different lengths: {n} and {len(leaf)}")
    for leaf in leaves(y):
        if len(leaf) != n:
            raise TaskError(f"{where} has {n} samples in x but {len(leaf)} labels in y")
    if n == 0:
        raise TaskError(f"{where} is empty")


def _tree(values: Any, where: str) -> Tree:
    """A tuple or dict of arrays is a structure; a list is an array. Texts in a dict are left out."""
    if isinstance(values, Mapping):
        return {key: _tree(value, f"{where}[{key!r}]") for key, value in values.items() if not is_text(value)}
    if isinstance(values, tuple) and any(isinstance(v, Tensor | np.ndarray | Mapping | tuple) for v in values):
        return tuple(_tree(value, f"{where}[{i}]") for i, value in enumerate(values))
    return None if values is None else _tensor(values, where)


def inputs(data: Any, train: Split, task: str) -> Tensor:
    """Unlabelled samples of the same type as the training data; labels are ignored."""
    where = f"task {task}: the auxiliary data"
    if is_dataset(data):
        data = _stack_inputs(data, where)
    elif isinstance(data, tuple | list) and len(data) == 2:
        data = data[0]
    x = _tensor(data, where)
    if x.ndim == 0 or len(x) == 0:
        raise TaskError(f"{where} is empty: give an array with a row for each sample")
    like = train.batch(train.raw([0]), [0]).x if isinstance(train, Rows) else train.x
    if not isinstance(like, Tensor):
        raise TaskError(f"{where} needs samples with one input, the train data has several")
    if x.shape[1:] != like.shape[1:] or x.dtype != like.dtype:
        raise TaskError(f"{where} has samples {_kind(x)}, the train data has {_kind(like)}: they must be equal")
    return x


def _kind(x: Tensor) -> str:
    return f"{tuple(x.shape[1:])} {x.dtype}"


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
        raise TaskError(
            f"{where} is {kind_of(values)}: only numbers are supported{_text_column(values)}"
        ) from None
    try:
        tensor = as_model_dtype(tensor)
    except CollateError:
        raise TaskError(f"{where} is {tensor.dtype}: only real numbers are supported") from None
    check_finite(tensor, where, names=list(getattr(values, "columns", ())))
    return tensor


def _text_column(values: Any) -> str:
    """A hint that names the first column of a table that is not numeric."""
    for name, kind in getattr(values, "dtypes", {}).items() if hasattr(values, "columns") else ():
        if kind.kind not in "biuf":
            return f"; column {name!r} is {kind}: number its categories 0, 1, … or drop it"
    kind = getattr(values, "dtype", None)
    return "; number the categories 0, 1, …" if kind is not None and kind.kind in "USO" else ""


def to_device(task: Task, device: torch.device, settings: DataSettings, *, images: bool) -> dict[str, Samples]:
    """The splits of a complete task on the device where they are used. Rows share one loader."""
    rows = {name: data for name in SPLITS if isinstance(data := getattr(task, name), Rows)}
    read_here = settings.model_copy(update={"workers": 0})
    loaders = {kept: Loader(rows, read_here if kept else settings, device) for kept in (True, False)}

    def samples_of(name: str) -> Samples:
        data = getattr(task, name)
        if isinstance(data, Rows):
            return LazySamples(loaders[data.kept], name, data, device, images=images)
        return stacked(data, device, images=images)

    return {name: samples_of(name) for name in SPLITS}


def close(splits: Iterable[Samples]) -> None:
    for samples in splits:
        if isinstance(samples, LazySamples):
            samples.close()


def stacked(data: Data, device: torch.device, *, images: bool) -> StackedSamples:
    """Move tensors to the device where they are used."""
    x = each_leaf(data.x, lambda t: channels_last(t.to(device)) if images else t.to(device))
    return StackedSamples(x, each_leaf(data.y, lambda t: t.to(device)))
