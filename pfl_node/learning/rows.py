"""Data that is read sample by sample: map-style Datasets, Hugging Face datasets, lists of rows.

A row is x, (x, y), several inputs and y, or a dict. Reading a batch seeds the random generators that transforms
use, so that the result depends only on the rows and the seed, in whichever process they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch import Tensor

from pfl_node.errors import TaskError, nearest
from pfl_node.learning.collate import (
    CATEGORIES,
    CollateError,
    as_batch,
    check_finite,
    is_text,
    stack,
    whole_labels,
)
from pfl_node.learning.samples import Batch, Tree, each_leaf, leaves, shape_of, size_of
from pfl_node.learning.seeding import seed_transforms
from pfl_node.plugin import in_a_line, line_of

TARGETS = ("label", "labels", "target", "targets", "y")  # columns that are labels unless the task names others

Collate = Callable[[list[Any]], Any]


class Failed(NamedTuple):
    """Why samples could not be read; returned, because an exception would lose its text between processes."""

    text: str


@dataclass(frozen=True)
class Columns:
    """The keys of dict rows that are the model's inputs and labels. One name selects its value; several select a
    dict."""

    inputs: str | tuple[str, ...] | None = None  # None: all columns that are not labels
    target: str | tuple[str, ...] | None = None  # None: no labels

    def split(self, row: Mapping[str, Any]) -> tuple[Any, Any]:
        """(x, y) of a row, or of a batch of rows."""
        inputs = self.inputs if self.inputs is not None else tuple(k for k in row if k not in _names(self.target))
        return _picked(row, inputs), None if self.target is None else _picked(row, self.target)


def _names(names: str | tuple[str, ...] | None) -> tuple[str, ...]:
    return () if names is None else (names,) if isinstance(names, str) else names


def _picked(row: Mapping[str, Any], names: str | tuple[str, ...]) -> Any:
    return row[names] if isinstance(names, str) else {name: row[name] for name in names}


@dataclass(frozen=True, eq=False)
class Rows:
    """Some rows of a dataset. `index` selects and orders them; None: all."""

    source: Any
    where: str  # "task NAME: the SPLIT data", for messages
    columns: Columns | None = None  # for dict rows
    inputs: str | tuple[str, ...] | None = None  # keys of the dict x of other rows, as in Columns; None: all
    label: str | None = None  # the labels are also in the dict x, by this name
    collate: Collate | None = None  # None: stack equal samples
    index: Tensor | None = None
    kept: bool = False  # the source is a list in memory

    def __len__(self) -> int:
        return len(self.source) if self.index is None else len(self.index)

    def at(self, index: Tensor) -> Rows:
        """The rows at these positions."""
        return replace(self, index=index if self.index is None else self.index[index])

    def read(self, positions: Sequence[int], seed: int | None) -> Batch | Failed:
        """A batch. Without a seed, each row is read with its own, so that the batch it is in does not matter."""
        chosen = positions if self.index is None else self.index[list(positions)].tolist()
        try:
            return self.batch(self.raw(chosen, seed), chosen)
        except TaskError as error:
            return Failed(str(error))

    def raw(self, chosen: Sequence[int], seed: int | None = None) -> list[Any]:
        """Rows of the source as it returns them; raises TaskError."""
        at = chosen[0]
        try:
            if _reads_many(self.source):
                return list(self.source.__getitems__(list(chosen)))
            rows = []
            if seed is not None:
                seed_transforms(seed)
            for at in chosen:
                if seed is None:
                    seed_transforms(at)
                rows.append(self.source[at])
        except Exception as error:  # the user's code may raise anything
            raise TaskError(
                f"{self.where}: sample {at} cannot be read{line_of(error)}: {in_a_line(error)}"
            ) from error
        return rows

    def batch(self, rows: list[Any], chosen: Sequence[int]) -> Batch:
        """Rows as one batch; raises TaskError."""
        try:
            x, y = self._collated(rows) if self.collate is not None else self._stacked(rows, chosen)
        except CollateError as error:
            raise TaskError(f"{self.where}: {error}") from None
        if not leaves(x):
            raise TaskError(f"{self.where}: sample {chosen[0]} is empty or None: return (x, y), or a dict")
        check_finite(x, f"{self.where}'s x", chosen)
        check_finite(y, f"{self.where}'s y", chosen)
        return Batch(x, each_leaf(y, whole_labels), size_of(x))

    def _stacked(self, rows: list[Any], chosen: Sequence[int]) -> tuple[Tree, Tree]:
        pairs = []
        for n, row in zip(chosen, rows, strict=True):
            try:
                pairs.append(self.pair(row))
            except KeyError as error:
                raise CollateError(f"sample {n} has no {error.args[0]!r}, but the first sample has") from None
        return stack([x for x, _ in pairs], "x", chosen), stack([y for _, y in pairs], "y", chosen)

    def _collated(self, rows: list[Any]) -> tuple[Tree, Tree]:
        assert self.collate is not None
        try:
            made = self.collate(rows)
        except Exception as error:  # the user's code may raise anything
            raise CollateError(f"collate failed{line_of(error)}: {in_a_line(error)}") from error
        try:
            x, y = (each_leaf(tree, as_batch) for tree in self.pair(made))
        except KeyError as error:
            raise CollateError(f"collate made a batch without {error.args[0]!r}") from None
        if any(t.ndim == 0 or len(t) != len(rows) for t in (*leaves(x), *leaves(y))):
            raise CollateError(
                f"collate made x {shape_of(x)}, y {shape_of(y)} of {len(rows)} samples: return the form of a row, "
                "such as (x, y), of tensors with one row per sample"
            )
        return x, y

    def pair(self, row: Any) -> tuple[Any, Any]:
        """(x, y) of a row, or of a batch that `collate` made."""
        if isinstance(row, Mapping):
            return (self.columns or Columns()).split(row)
        if isinstance(row, tuple | list):
            *inputs, y = row if len(row) > 1 else (*row, None)
            if not inputs:
                raise TaskError(f"{self.where} has an empty row")
            return (self._taken(inputs[0], y) if len(inputs) == 1 else tuple(inputs)), y
        return row, None

    def _taken(self, x: Any, y: Any) -> Any:
        """The inputs in x that the model takes."""
        if not isinstance(x, Mapping) or self.inputs is None:
            return x
        if self.label is None:
            return _picked(x, self.inputs)
        return {name: x[name] for name in _names(self.inputs)} | {self.label: y}


def _reads_many(source: Any) -> bool:
    """A Hugging Face dataset reads a batch ten times as fast as single rows; a transform reads rows one by one."""
    return type(source).__module__.startswith("datasets.") and source.format["type"] != "custom"


def columns_of(row: Any, inputs: Any, target: Any, where: str) -> Columns | None:
    """The columns that the task names, or those that their names and values suggest; None: rows are not dicts."""
    if not isinstance(row, Mapping):
        if inputs is not None or target is not None:
            raise TaskError(
                f"{where} has rows that are not dicts, so they have no columns for `inputs` or `target`"
            )
        return None
    for name in (*_names(_tupled(inputs)), *_names(_tupled(target))):
        if name not in row:
            raise TaskError(f"{where} has no column {name!r}; {nearest(name, map(str, row))}")
        if is_text(row[name]):
            raise TaskError(f"{where}: the column {name!r} is text: {CATEGORIES}")
    if target is None:
        target = next((key for key in TARGETS if key in row), None)
    if inputs is None:
        labels = _names(_tupled(target))
        numbers = (key for key, value in row.items() if value is not None and not is_text(value))
        inputs = tuple(key for key in numbers if key not in labels)
        if not inputs:
            raise TaskError(f"{where} has no column with numbers besides the label: {', '.join(map(str, row))}")
    return Columns(_tupled(inputs), _tupled(target))


def _tupled(names: str | Iterable[str] | None) -> str | tuple[str, ...] | None:
    return names if names is None or isinstance(names, str) else tuple(names)
