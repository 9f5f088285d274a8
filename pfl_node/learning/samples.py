"""A split as the learner reads it: batches of inputs and labels, on the device where they are used.

Training, scoring and distillation iterate over `Samples.batches` independently of where the samples come from.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

Tree = Any  # a tensor, or a tuple, list or dict of trees
Index = Tensor | slice  # selects samples of a split


class Batch(NamedTuple):
    """Some samples. A tuple x is passed as `model(*x)`, a dict as `model(**x)`; y is None without labels."""

    x: Tree
    y: Tree
    n: int

    @property
    def target(self) -> Tree:
        """The second argument of the loss: the labels or, without labels, the inputs."""
        return self.x if self.y is None else self.y


class Samples(Protocol):
    """The samples of one split."""

    @property
    def n(self) -> int: ...

    @property
    def identity(self) -> tuple[Hashable, ...]:
        """Equal for two splits with the same samples in this process."""

    @property
    def labels(self) -> Tensor | None:
        """The labels of all samples, if they are one tensor and known without reading the samples."""

    def batches(self, order: Iterable[Index], seed: int | None = None) -> Iterator[Batch]:
        """The batches with these indices. `seed` determines random transforms, which differ each time a sample is
        read; None: for evaluation, the transforms of a sample are always the same."""


class StackedSamples:
    """All samples in memory: trees of tensors with one row per sample. Images may be in channels-last format."""

    def __init__(self, x: Tree, y: Tree) -> None:
        self.x, self.y = x, y
        self.n = size_of(x)

    @property
    def device(self) -> torch.device | None:
        """The device where an index must be, so that taking samples copies nothing; None: main memory."""
        found: torch.device = leaves(self.x)[0].device
        return None if found.type == "cpu" else found

    @property
    def identity(self) -> tuple[Hashable, ...]:
        return (self.n, *(t.data_ptr() for t in (*leaves(self.x), *leaves(self.y))))

    @property
    def labels(self) -> Tensor | None:
        return self.y if isinstance(self.y, Tensor) else None

    def batches(self, order: Iterable[Index], seed: int | None = None) -> Iterator[Batch]:  # noqa: ARG002
        for index in order:
            n = index.stop - index.start if isinstance(index, slice) else len(index)
            yield Batch(take(self.x, index), take(self.y, index), n)


def call(module: nn.Module, x: Tree) -> Any:
    """The module's output for a batch of inputs."""
    if isinstance(x, tuple):
        return module(*x)
    if isinstance(x, dict):
        return module(**x)
    return module(x)


def in_order(n: int, batch: int, draw: Tensor | None = None) -> Iterator[Index]:
    """Indices for an evaluation of all n samples, or of the drawn ones."""
    if draw is not None:
        yield from torch.split(draw, batch)
        return
    for start in range(0, n, batch):
        yield slice(start, min(start + batch, n))


def first(samples: Samples, count: int) -> Batch:
    """The first samples of a split, as evaluation reads them."""
    return next(samples.batches([slice(0, min(count, samples.n))]))


def each_leaf(tree: Tree, change: Callable[[Any], Any]) -> Tree:
    """The tree with every leaf changed; None stays None."""
    if isinstance(tree, dict):
        return {key: each_leaf(value, change) for key, value in tree.items()}
    if isinstance(tree, tuple | list):
        return tuple(each_leaf(value, change) for value in tree)
    return None if tree is None else change(tree)


def leaves(tree: Tree) -> list[Any]:
    if isinstance(tree, dict):
        return [leaf for value in tree.values() for leaf in leaves(value)]
    if isinstance(tree, tuple | list):
        return [leaf for value in tree for leaf in leaves(value)]
    return [] if tree is None else [tree]


def take(tree: Tree, index: Index) -> Tree:
    return tree[index] if isinstance(tree, Tensor) else each_leaf(tree, lambda t: t[index])


def size_of(tree: Tree) -> int:
    """The number of samples in a tree of tensors."""
    return len(tree) if isinstance(tree, Tensor) else len(leaves(tree)[0])


def shape_of(tree: Tree) -> str:
    """Shapes and types, for messages."""
    if isinstance(tree, Tensor):
        return f"{tuple(tree.shape)} {str(tree.dtype).removeprefix('torch.')}"
    if isinstance(tree, dict):
        return "{" + ", ".join(f"{key}: {shape_of(value)}" for key, value in tree.items()) + "}"
    if isinstance(tree, tuple | list):
        return "(" + ", ".join(map(shape_of, tree)) + ")"
    return "none" if tree is None else type(tree).__name__


def channels_last(x: Tensor) -> Tensor:
    """Images in the memory format in which convolutions are fastest; other data unchanged."""
    if x.ndim != 4 or not x.is_floating_point():
        return x
    n, c, h, w = x.shape
    return x.permute(0, 2, 3, 1).contiguous().as_strided((n, c, h, w), (h * w * c, 1, w * c, c))
