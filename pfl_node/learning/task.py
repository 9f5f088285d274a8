"""The definition of a task: a model and its head, a loss, and data. Does not import torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from pfl_node.errors import ConfigError, nearest

if TYPE_CHECKING:
    from torch import nn


LOWER_IS_BETTER = frozenset({"loss", "perplexity", "mae", "mse", "rmse", "mape", "error", "wer", "cer"})


class Data(NamedTuple):
    """Samples and labels: tensors or numpy arrays of equal length, or tuples or dicts of them."""

    x: Any
    y: Any


class ColumnData(Data):
    """Data whose labels came from a named column."""

    label: str | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """The node for which a task is built: place `index` of `nodes` (None: unknown), the run's seed, the node's
    id."""

    index: int | None
    nodes: int | None
    seed: int
    node_id: str


@dataclass(frozen=True)
class Task:
    """The task of one node. Without `val`, a tenth of `train` is used; without `test`, `val`."""

    name: str
    model: Callable[[], nn.Module]  # called for each fresh model, with a seeded generator
    train: Any  # Data, a map-style Dataset, or a dict of columns
    val: Any = None
    test: Any = None
    loss: Callable[[Any, Any], Any] | None = None  # called with (output, y or else x); a mean; None: cross-entropy
    head: str | Sequence[str] | None = None  # name prefixes; None: the last layer with parameters; "*": all
    metrics: Mapping[str, Any] | Sequence[str] | str = ()  # functions of (outputs, y) over a split; torchmetrics
    best: str | None = None  # the metric that decides which model is best; "min:NAME": lower is better
    fit: Any | None = None  # own training loop, a function of (model, work); "lightning", "transformers"
    train_defaults: Mapping[str, Any] = field(default_factory=dict)  # keys of TrainSettings, which take precedence
    cluster: int | None = None  # the true cluster, for reports; hidden from policies
    auxiliary: Any | None = None  # unlabelled inputs for distillation, the same at every place
    auxiliary_labels: Any | None = None  # to evaluate an ensemble; not used for training
    networks: Mapping[str, Callable[[], nn.Module]] = field(default_factory=dict)  # by name, for students
    autoencoder: Callable[[], nn.Module] | None = None  # built for inputs in [0, 1]; None: a small symmetric MLP
    inputs: str | Sequence[str] | None = None  # columns that the model receives; None: those that it names
    target: str | Sequence[str] | None = None  # columns that are labels; None: label, labels, target, targets or y
    collate: Callable[[list[Any]], Any] | None = None  # makes a batch of rows of a Dataset; None: stack them
    private: str | Sequence[str] = ()  # globs over tensors and modules that never leave the node ("*.bn*")
    penalties: Mapping[str, Callable[..., Any]] = field(default_factory=dict)  # terms of the loss, by name
    shared: str | Sequence[str] = ()  # globs over buffers that are sent although they are not batch statistics


def other_network(task: Task, name: str) -> Callable[[], nn.Module]:
    """A network of the task other than its own."""
    if name not in task.networks:
        known = nearest(name, task.networks) if task.networks else "it names none"
        raise ConfigError(f"task {task.name} has no network {name!r} for policy.student_model; {known}")
    return task.networks[name]
