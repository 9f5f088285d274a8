"""The personal model of a data directory as a module of torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pfl_node import plugin
from pfl_node.errors import ConfigError, LayoutMismatch, StoreError, nearest
from pfl_node.learning.layout import Array, Placement, placement_of, tensors_of
from pfl_node.learning.seeding import seeded
from pfl_node.learning.task import Place, Task, other_network
from pfl_node.learning.tasks import load_task
from pfl_node.learning.workspace import in_float32
from pfl_node.model import Layout
from pfl_node.settings import Settings, TaskSettings
from pfl_node.settings.load import load_settings
from pfl_node.store.data_dir import BEST_MODEL, MODEL, SETTINGS
from pfl_node.store.model_file import read_model

Where = str | PathLike[str]
TaskLike = str | Callable[..., Any]


@dataclass(frozen=True)
class PersonalModel:
    """A node's model, the task it was trained on, and the metadata of its file."""

    module: nn.Module
    task: Task
    facts: Mapping[str, str]


def load(
    directory: Where,
    *,
    into: nn.Module | None = None,
    task: TaskLike | None = None,
    best: bool = False,
    **options: Any,
) -> nn.Module:
    """The personal model of a node, in evaluation mode, from its data directory (also while the node runs).

    Calls the task's function with the settings of the node's last start; `task` and `options` replace them. With
    `into`, the task is not called: the tensors are loaded into that module. `best`: the model that was best on
    the node's validation data instead of the last one.
    """
    if into is None:
        return load_personal(directory, task=task, best=best, **options).module
    if task is not None or options:
        raise ConfigError("load: give either `into` or a task and its options")
    _, tensors = read_model(file_in(directory, best=best))
    return fill(into, tensors)


def file_in(directory: Where, *, best: bool) -> Path:
    return Path(directory) / (BEST_MODEL if best else MODEL)


def load_personal(
    directory: Where, *, task: TaskLike | None = None, best: bool = False, **options: Any
) -> PersonalModel:
    folder, file = Path(directory), file_in(directory, best=best)
    facts, tensors = read_model(file)
    settings = _settings(folder, task, options)
    place = Place(settings.task.index, settings.task.nodes, settings.seed, facts.get("node", ""))  # type: ignore[arg-type]
    found = load_task(settings.task, place)
    module = build(found, settings)
    placement = _placement(module, found, settings)
    _check(placement.shared, found.name, facts, file)
    return PersonalModel(fill(in_float32(module, placement, torch.device("cpu")), tensors), found, facts)


def build(task: Task, settings: Settings) -> nn.Module:
    """The network whose model is sent: the task's own, or the student's."""
    student = settings.policy.options.get("student_model")
    factory = task.model if student is None else other_network(task, student)
    with seeded(0):
        return factory()


def fill(module: nn.Module, tensors: Mapping[str, Array]) -> nn.Module:
    """Copy named tensors into a module, and set it to evaluation mode."""
    own = dict(module.state_dict(keep_vars=True))
    for name, array in tensors.items():
        if name not in own:
            raise LayoutMismatch(f"the module has no tensor {name!r}: {nearest(name, own)}")
        if tuple(own[name].shape) != array.shape:
            shape = tuple(own[name].shape)
            raise LayoutMismatch(f"the tensor {name!r} has the shape {array.shape}, the module's has {shape}")
    needed = [name for name, _, trained in tensors_of(module) if trained and name not in tensors]
    if needed:
        raise LayoutMismatch(f"the file has no tensor {needed[0]!r}, which the module trains")
    module.load_state_dict({name: torch.from_numpy(array) for name, array in tensors.items()}, strict=False)
    return module.eval()


def _settings(folder: Path, task: TaskLike | None, options: Mapping[str, Any]) -> Settings:
    file = folder / SETTINGS
    if not file.exists():
        raise StoreError(f"there is no {file}, which says how to build the model: give `into`, a module to fill")
    settings = load_settings(config=file)
    name = settings.task.name if task is None else task if isinstance(task, str) else plugin.register(task)
    known = settings.task.model_dump() if task is None else {}
    place = {"index": settings.task.index, "nodes": settings.task.nodes}
    changed = TaskSettings.model_validate({**known, **place, **options, "name": name})
    return settings.model_copy(update={"task": changed})


def _placement(module: nn.Module, task: Task, settings: Settings) -> Placement:
    if settings.policy.options.get("student_model"):
        return placement_of(module)
    return placement_of(module, task.head, private=task.private, shared=task.shared)


def _check(layout: Layout, task: str, facts: Mapping[str, str], file: Path) -> None:
    if (digest := facts.get("layout")) and digest != layout.digest:
        raise LayoutMismatch(
            f"task {task} builds another model than the one in {file} "
            f"({layout.difference(digest)}): has its code or an option changed?"
        )
