"""Selects the named inputs that a model receives: those that its `forward` names."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from pfl_node.errors import TaskError
from pfl_node.learning.rows import TARGETS, Rows
from pfl_node.learning.seeding import same_generators
from pfl_node.learning.task import ColumnData, Data, Task

SPLITS = ("train", "val", "test")


def with_inputs_of(module: nn.Module, task: Task) -> Task:
    """The task whose dict samples have only the inputs that the model takes. A single input that the model names
    differently is passed by position. A label that `forward` names, as those of Hugging Face do, is passed too,
    unless the task has its own loss."""
    chosen: dict[int, Any] = {}  # splits may be the same object
    for name in SPLITS:
        data = getattr(task, name)
        if id(data) not in chosen:
            chosen[id(data)] = _chosen(module, data, task, name)
    return replace(task, **{name: chosen[id(getattr(task, name))] for name in SPLITS})


def _chosen(module: nn.Module, data: Data | Rows, task: Task, name: str) -> Data | Rows:
    where = f"task {task.name}: the {name} data"
    if isinstance(data, Rows):
        if data.columns is None:
            return _chosen_of_pairs(module, data, task, where)
        if data.columns.inputs is None:
            return data
        named = _label_too(module, data.columns.target, task)
        inputs = data.columns.inputs
        if not isinstance(inputs, str):
            inputs = _wanted(module, inputs, where, given=task.inputs is not None)
        inputs = (*_names(inputs), *named) if named else inputs  # one input alone is passed by position
        return replace(data, columns=replace(data.columns, inputs=inputs))
    if not isinstance(data.x, dict):
        return data
    inputs = _wanted(module, tuple(data.x), where, given=task.inputs is not None)
    named = _label_too(module, data.label, task) if isinstance(data, ColumnData) else _label_of(module, task, data)
    if isinstance(inputs, str) and not named:
        return Data(data.x[inputs], data.y)
    return Data({key: data.x[key] for key in _names(inputs)} | dict.fromkeys(named, data.y), data.y)


def _chosen_of_pairs(module: nn.Module, data: Rows, task: Task, where: str) -> Rows:
    """The inputs of rows such as ({"image": …, "table": …}, y)."""
    with same_generators():
        batch = data.batch(data.raw([0]), [0])
    if not isinstance(batch.x, dict):
        return data
    inputs = _wanted(module, tuple(batch.x), where, given=False)
    label = _label_of(module, task, Data(batch.x, batch.y))
    return replace(data, inputs=inputs, label=label[0] if label else None)


def _names(inputs: str | tuple[str, ...]) -> tuple[str, ...]:
    return (inputs,) if isinstance(inputs, str) else inputs


def _label_of(module: nn.Module, task: Task, data: Data) -> tuple[str, ...]:
    """The parameter of `forward` that takes the labels, if they have no name of their own."""
    if task.loss is not None or not isinstance(data.y, Tensor):
        return ()
    names = (task.target,) if isinstance(task.target, str) else TARGETS if task.target is None else ()
    parameters = inspect.signature(module.forward).parameters
    return tuple(name for name in names if name in parameters and name not in data.x)[:1]


def _label_too(module: nn.Module, label: Any, task: Task) -> tuple[str, ...]:
    """The label, if the model computes its loss from it. A model with any keywords, as PEFT wraps one, is taken to
    do so with `labels`."""
    if not isinstance(label, str) or task.loss is not None:
        return ()
    parameters = inspect.signature(module.forward).parameters
    anything = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    return (label,) if label in parameters or (anything and label == "labels") else ()


def _wanted(module: nn.Module, names: Sequence[str], where: str, *, given: bool) -> str | tuple[str, ...]:
    """The names that `forward` has; one name alone: its value, by position."""
    parameters = inspect.signature(module.forward).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return tuple(names)
    known = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    common = tuple(name for name in names if name in known)
    if len(names) == 1 and not common:
        return names[0]
    if common and (len(common) == len(names) or not given):
        return common
    raise TaskError(
        f"{where} has the inputs {', '.join(names)}, but the model's forward takes {', '.join(known) or 'none'}: "
        f"set `inputs` to the columns that it takes, or rename its parameters"
    )
