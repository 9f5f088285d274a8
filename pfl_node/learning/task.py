"""What to learn at one place: a model, where its head begins, a loss, and the data. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import nn


class Data(NamedTuple):
    """Samples and their labels: tensors or numpy arrays of equal length."""

    x: Any
    y: Any


@dataclass(frozen=True, slots=True)
class Place:
    """Where a task is asked for: place `index` of `nodes` (None: unknown), the run's seed, the node's id."""

    index: int | None
    nodes: int | None
    seed: int
    node_id: str


@dataclass(frozen=True)
class Task:
    """One place's task. Without `val` a tenth of `train` is taken for it; without `test`, `test` is `val`."""

    name: str
    model: Callable[[], nn.Module]  # called anew for each fresh model; its randomness is seeded
    train: Data
    val: Data | None = None
    test: Data | None = None
    loss: Callable[[Any, Any], Any] | None = None  # of (output, y), the mean over a batch; None: cross-entropy
    head: str | Sequence[str] | None = None  # name prefixes; None: the last layer with parameters; "*": everything
    train_defaults: Mapping[str, Any] = field(default_factory=dict)  # keys of TrainSettings, which override them
    cluster: int | None = None  # the truth, for reports only; a policy never sees it
    auxiliary: Any | None = None  # inputs without labels, the same at every place; distillation needs them
    autoencoder: Callable[[], nn.Module] | None = None  # for inputs scaled to [0, 1]; None: a small symmetric MLP
