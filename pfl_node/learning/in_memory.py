"""Decide whether the rows of a dataset stay in memory, and read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import structlog
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from pfl_node.errors import TaskError
from pfl_node.learning.memory_limit import available_memory
from pfl_node.learning.rows import Columns, Rows
from pfl_node.learning.samples import Batch, Tree, each_leaf, leaves, take
from pfl_node.learning.seeding import same_generators, seed_transforms, states
from pfl_node.learning.task import ColumnData, Data
from pfl_node.settings import DataSettings

log = structlog.get_logger(__name__)

LARGEST = 1 << 29  # bytes of one split that data.memory = auto keeps
SHARE = 4  # and at most one part in this many of the available memory
PROBED = 8  # samples that are read to estimate the size and to find randomness
AT_ONCE = 64  # samples per batch while a split is read


def unusable(data: Any) -> str:
    """Describes unusable data and what to return instead; empty: it may be usable."""
    kind = type(data).__name__
    if isinstance(data, type):
        return f"the class {data.__name__}: give an instance of it"
    if isinstance(data, IterableDataset) or kind == "IterableDataset":
        return (
            "an IterableDataset, which has no order that a seed could determine: give a Dataset with __len__ and "
            "__getitem__, or list(dataset)"
        )
    if isinstance(data, DataLoader):
        return "a DataLoader: give its dataset; train.batch, data.workers and `collate` replace its options"
    if isinstance(data, Mapping) and kind.endswith("DatasetDict"):
        return f"a {kind}: give one of its splits, such as data[{next(iter(data), 'train')!r}]"
    if isinstance(data, Iterator):
        return f"a {kind}, which can be read only once: give list(…) of it, or a Dataset"
    return ""


def kept(rows: Rows, settings: DataSettings) -> Data | Rows:
    """The rows in memory, if the setting says so or if they are small and not random."""
    if settings.memory == "never":
        return rows
    with same_generators():
        if settings.memory == "auto" and (_size(rows) > _room() or is_random(rows)):
            return rows
        return loaded(rows)


def _room() -> int:
    return min(LARGEST, available_memory() // SHARE)


def _probe(n: int) -> list[int]:
    """Positions spread over n samples, with the first and the last."""
    return sorted({round(i * (n - 1) / max(1, PROBED - 1)) for i in range(PROBED)})


def _size(rows: Rows) -> int:
    """An estimate of the bytes of all samples, from a few of them."""
    chosen = _probe(len(rows))
    batches = [rows.batch(rows.raw([i]), [i]) for i in chosen]
    total: int = sum(t.nbytes for b in batches for t in (*leaves(b.x), *leaves(b.y)))
    return total * len(rows) // len(chosen)


def is_random(rows: Rows) -> bool:
    """Whether reading a sample draws from a random generator, or gives different results for different seeds."""
    for i in _probe(len(rows)):
        seed_transforms(1)
        before = states()
        first = rows.raw([i], 1)
        if not _equal(before, states()):
            return True
        if not _equal(first, rows.raw([i], 2)):
            log.warning(
                f"{rows.where}: sample {i} differs each time it is read, whatever the seed, so that a run cannot "
                "be repeated: use the generators of random, numpy.random or torch"
            )
            return True
    return False


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, Mapping):
        return isinstance(b, Mapping) and a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(map(_equal, a, b))
    if isinstance(a, Tensor | np.ndarray):
        return type(a) is type(b) and a.shape == b.shape and bool(np.all(np.asarray((a == b) | (a != a))))
    return bool(a == b or a != a)


def loaded(rows: Rows) -> Data | Rows:
    """All samples: stacked or, if `collate` makes the batches, as a list of rows."""
    n = len(rows)
    if rows.collate is not None:
        return replace(rows, source=[rows.raw([i])[0] for i in range(n)], kept=True)
    whole: Batch | None = None
    for start in range(0, n, AT_ONCE):
        chosen = range(start, min(start + AT_ONCE, n))
        batch = rows.batch(rows.raw(chosen), chosen)
        if whole is None:
            whole = Batch(_room_for(batch.x, n), _room_for(batch.y, n), n)
        _write(whole, batch, slice(start, start + batch.n), rows.where)
    assert whole is not None
    return Data(whole.x, whole.y) if rows.columns is None else labelled(whole.x, whole.y, rows.columns)


def labelled(x: Tree, y: Tree, columns: Columns) -> ColumnData:
    data = ColumnData(x, y)
    data.label = columns.target if isinstance(columns.target, str) else None
    return data


def taken(data: Data, index: Tensor) -> Data:
    """Some samples of the data."""
    some = data._replace(x=take(data.x, index), y=take(data.y, index))
    if isinstance(data, ColumnData) and isinstance(some, ColumnData):
        some.label = data.label
    return some


def _room_for(tree: Tree, n: int) -> Tree:
    return each_leaf(tree, lambda t: torch.empty((n, *t.shape[1:]), dtype=t.dtype))


def _write(whole: Batch, batch: Batch, at: slice, where: str) -> None:
    pairs = zip((*leaves(whole.x), *leaves(whole.y)), (*leaves(batch.x), *leaves(batch.y)), strict=True)
    for target, values in pairs:
        if target.dtype != values.dtype:
            raise TaskError(
                f"{where}: samples {at.start} to {at.stop - 1} are {values.dtype}, the first samples "
                f"{target.dtype}: give all samples the same type"
            )
        if target.shape[1:] != values.shape[1:]:
            raise TaskError(
                f"{where}: samples {at.start} to {at.stop - 1} have the shape {tuple(values.shape[1:])}, the "
                f"first samples {tuple(target.shape[1:])}: make them equal in a transform, or give a `collate`"
            )
        take(target, at).copy_(values)
