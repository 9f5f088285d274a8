"""The metrics of a task, computed over a whole split: functions, torchmetrics, perplexity."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from warnings import catch_warnings

import torch
from torch import Tensor, nn

from pfl_node.errors import TaskError, nearest
from pfl_node.learning.samples import Samples, call, each_leaf, first, leaves
from pfl_node.learning.task import LOWER_IS_BETTER, Task
from pfl_node.learning.warn_once import warn_once
from pfl_node.plugin import in_a_line
from pfl_node.types import ACCURACY, LOSS, Eval, Headline

PERPLEXITY = "perplexity"
SAMPLE = 16  # samples on which metrics are checked
RESERVED = frozenset({"loss", "accuracy", "samples"})
Function = Callable[[Any, Any], Any]


@dataclass(frozen=True, slots=True)
class Outputs:
    """The kind of a model's outputs, which some torchmetrics take as arguments: see `outputs_of`."""

    task: str  # binary, multiclass, multilabel, or something else
    classes: int | None  # number of classes or labels
    sequence: bool = False  # class scores for each token of a sequence


def outputs_of(output: Any, y: Any, *, own_loss: bool) -> Outputs:
    if not isinstance(output, Tensor) or not isinstance(y, Tensor):
        return Outputs("", None)
    if y.is_floating_point() or (output.ndim == y.ndim == 2 and output.shape[1] > 1):
        return _several_labels(output, y)
    if output.ndim == y.ndim or (output.ndim == y.ndim + 1 and output.shape[1] == 1):
        return Outputs("binary", None)
    by_class = output.ndim == y.ndim + 1 and (output.shape[0], *output.shape[2:]) == tuple(y.shape)
    if own_loss and not by_class:  # class scores in the last dimension, or another kind of output
        return Outputs("", None)
    sequence = output.ndim == 3 and y.ndim == 2 and not own_loss
    return Outputs("multiclass", output.shape[1] if output.ndim > 1 else None, sequence)


def _several_labels(output: Tensor, y: Tensor) -> Outputs:
    """Binary or multilabel if the labels are zeros and ones, one per output, as for nn.BCEWithLogitsLoss."""
    columns = output.shape[1] if output.ndim > 1 else 1
    if output.numel() != y.numel() or bool(((y != 0) & (y != 1)).any()):
        return Outputs("", None)
    return Outputs("binary", None) if columns == 1 or output.ndim > 2 else Outputs("multilabel", columns)


def metrics_of(task: Task, module: nn.Module, val: Samples, device: torch.device) -> TaskMetrics:
    """The metrics of a task, checked with a few samples. The module holds any model."""
    batch = first(val, SAMPLE)
    with torch.inference_mode():
        output = call(module, batch.x)
        metrics = TaskMetrics(task, outputs_of(output, batch.y, own_loss=task.loss is not None))
        metrics.check(output, batch.target, device)
    return metrics


class TaskMetrics:
    """The metrics of one task, and which figure decides which model is best."""

    def __init__(self, task: Task, about: Outputs) -> None:
        self._name, self._sequence = task.name, about.sequence
        given = _named(task)
        self._functions: dict[str, Function] = {}
        self._torch: dict[str, Any] = {}
        self._perplexity = about.sequence or PERPLEXITY in given
        for name, what in given.items():
            if isinstance(what, str) and what == PERPLEXITY:
                continue
            if callable(getattr(what, "update", None)) and callable(getattr(what, "compute", None)):
                self._torch[name] = what
            elif isinstance(what, str):
                self._torch[name] = _torchmetric(task.name, name, what, about)
            elif callable(what):
                self._functions[name] = what
            else:
                raise TaskError(f"task {task.name}: metric {name!r} is of type {type(what).__name__}: {FORMS}")
        self._named_best = task.best is not None or about.sequence
        self.headline = self._headline(task.best, about)

    @property
    def names(self) -> list[str]:
        return [*self._functions, *self._torch, *([PERPLEXITY] if self._perplexity else [])]

    @property
    def collects(self) -> bool:
        """Whether `begin` must see the outputs."""
        return bool(self._functions or self._torch)

    def begin(self, device: torch.device) -> MetricsRun:
        return MetricsRun(self._functions, {n: deepcopy(m).to(device) for n, m in self._torch.items()})

    def complete(self, figures: Eval, run: MetricsRun | None) -> Eval:
        """The evaluation with the task's metrics."""
        if not self.names:
            return figures
        values = run.values(self._failed) if run else {}
        if self._perplexity:
            values[PERPLEXITY] = math.exp(min(figures.loss, 700.0))
        if self._sequence:
            figures = replace(figures, accuracy=math.nan)
        found = {"loss": figures.loss, "accuracy": figures.accuracy, **values}[self.headline.name]
        score = (found if self.headline.higher else -found) if self._named_best else None
        return replace(figures, metrics=values, score=None if score is None or math.isnan(score) else score)

    def check(self, output: Any, y: Any, device: torch.device) -> None:
        """Raises TaskError if a metric fails on a few samples. A ValueError or a warning is accepted: AUC, for
        example, is undefined for samples of one class."""

        def failed(name: str, error: Exception) -> None:
            if not isinstance(error, ValueError | Warning):
                raise TaskError(f"task {self._name}: metric {name!r} fails: {in_a_line(error)}") from error

        run = self.begin(device)
        run.add(output, y)
        run.values(failed)

    def _failed(self, name: str, error: Exception) -> None:
        doubtful = isinstance(error, Warning)
        text = "a metric is doubtful" if doubtful else "a metric cannot be computed and is left out"
        warn_once(text, task=self._name, metric=name, error=in_a_line(error))

    def _headline(self, best: str | None, about: Outputs) -> Headline:
        if best is None:
            if about.sequence:
                return Headline(PERPLEXITY, higher=False)
            return ACCURACY if about.task == "multiclass" else LOSS
        way, _, name = best.rpartition(":")
        known = [*self.names, "loss", "accuracy"]
        if name not in known:
            raise TaskError(f"task {self._name}: best = {best!r} is not a metric; {nearest(name, known)}")
        if way not in ("", "min", "max"):
            raise TaskError(f"task {self._name}: best = {best!r}: write {name!r}, 'min:{name}' or 'max:{name}'")
        hint = getattr(self._torch.get(name), "higher_is_better", None)
        higher = way == "max" if way else name.lower() not in LOWER_IS_BETTER if hint is None else bool(hint)
        return Headline(name, higher=higher)


FORMS = "give a function of (outputs, y), a torchmetrics.Metric, or the name of one"


class MetricsRun:
    """One evaluation: collects the outputs of its batches."""

    def __init__(self, functions: Mapping[str, Function], torch: Mapping[str, Any]) -> None:
        self._functions, self._torch = functions, torch
        self._outputs: list[Any] = []
        self._labels: list[Any] = []
        self._broken: dict[str, Exception] = {}

    def add(self, output: Any, y: Any) -> None:
        if self._functions:
            self._outputs.append(each_leaf(output, _home))
            self._labels.append(each_leaf(y, _home))
        for name, metric in self._torch.items():
            try:
                metric.update(_squeezed(output, y), _classes(metric, y))
            except Exception as error:  # torchmetrics may raise anything for outputs that do not fit
                self._broken[name] = error

    def values(self, failed: Callable[[str, Exception], None]) -> dict[str, float]:
        """The values of all metrics; NaN for a metric that fails."""
        found = {}
        outputs, labels = (_joined(self._outputs), _joined(self._labels)) if self._functions else (None, None)
        for name, function in self._functions.items():
            found[name] = self._value(name, partial(function, outputs, labels), failed)
        for name, metric in self._torch.items():
            found[name] = self._value(name, metric.compute, failed)
        return found

    def _value(self, name: str, compute: Callable[[], Any], failed: Callable[[str, Exception], None]) -> float:
        try:
            if name in self._broken:
                raise self._broken[name]
            with catch_warnings(record=True, action="always") as said:  # such as scikit-learn's about one class
                found = _number(compute())
            if math.isnan(found):
                raise ValueError(str(said[0].message) if said else "it is NaN")
            if said and isinstance(said[0].message, Exception):
                failed(name, said[0].message)
            return found
        except Exception as error:  # the user's code may raise anything
            failed(name, error)
            return math.nan


def _classes(metric: Any, y: Any) -> Any:
    """Labels 0.0 and 1.0, which nn.BCEWithLogitsLoss takes, as the integers that a classification metric takes."""
    by_class = type(metric).__module__.startswith("torchmetrics.classification")
    if by_class and isinstance(y, Tensor) and y.is_floating_point() and bool((y == y.round()).all()):
        return y.long()
    return y


def _number(value: Any) -> float:
    if isinstance(value, Tensor) and value.numel() != 1:
        raise TypeError(f"it returns a tensor of the shape {tuple(value.shape)}, not a number")
    return float(value)


def _named(task: Task) -> dict[str, Any]:
    given = task.metrics
    if isinstance(given, str):
        given = [given]
    if isinstance(given, Sequence):
        if not all(isinstance(name, str) for name in given):
            raise TaskError(f"task {task.name}: metrics is a list of functions: give a dict by name")
        given = {name: name for name in given}
    if not isinstance(given, Mapping):
        raise TaskError(f"task {task.name}: metrics is of type {type(given).__name__}: give a dict by name")
    for name in given:
        if not isinstance(name, str) or not name.isidentifier() or name in RESERVED:
            raise TaskError(f"task {task.name}: {name!r} is not a valid name of a metric")
    return dict(given)


def _torchmetric(task: str, name: str, kind: str, about: Outputs) -> Any:
    """A class of torchmetrics; its arguments `task` and `num_classes` follow from the model's outputs."""
    try:
        import torchmetrics
    except ImportError:
        hint = "pip install 'pfl-node[metrics]', or give a function of (outputs, y)"
        raise TaskError(f"task {task}: metric {name!r} = {kind!r} needs torchmetrics: {hint}") from None
    known = [n for n, value in vars(torchmetrics).items() if inspect.isclass(value)]
    if kind not in known:
        raise TaskError(f"task {task}: metric {name!r}: torchmetrics has no {kind!r}; {nearest(kind, known)}")
    made = getattr(torchmetrics, kind)
    takes = {*inspect.signature(made).parameters, *inspect.signature(made.__new__).parameters}
    several = about.task == "multilabel"
    options: dict[str, Any] = {"task": about.task, "num_labels" if several else "num_classes": about.classes}
    try:
        return made(**{key: value for key, value in options.items() if key in takes and value})
    except (TypeError, ValueError) as error:
        hint = "give an instance with its arguments"
        raise TaskError(f"task {task}: metric {name!r}: {kind} cannot be created: {error}; {hint}") from None


def _squeezed(output: Any, y: Any) -> Any:
    """One column per sample as one number per sample, as torchmetrics expects."""
    if (
        isinstance(output, Tensor)
        and isinstance(y, Tensor)
        and output.ndim == y.ndim + 1
        and output.shape[-1] == 1
    ):
        return output.squeeze(-1)
    return output


def _home(tensor: Any) -> Any:
    """The tensor in main memory, as float32 if it is a floating-point tensor."""
    if not isinstance(tensor, Tensor):
        return tensor
    tensor = tensor.detach().cpu()
    return tensor.float() if tensor.is_floating_point() else tensor


def _joined(batches: Sequence[Any]) -> Any:
    """The batches of one tree as one tree."""
    if not batches or len(batches) == 1:
        return batches[0] if batches else None
    columns = iter([torch.cat(same) for same in zip(*map(leaves, batches), strict=True)])
    return each_leaf(batches[0], lambda _: next(columns))
