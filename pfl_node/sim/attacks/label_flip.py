"""Data poisoning: a task whose training labels are wrong. Needs no torch: an array will do."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pfl_node.errors import TaskError
from pfl_node.sim.attacks.colluders import is_bad

if TYPE_CHECKING:
    from pfl_node.learning.task import Place, Task
    from pfl_node.settings import Settings


def poisoned(task: Task, settings: Settings, place: Place) -> Task:
    """The task as a bad place has it: of C classes, y becomes C - 1 - y. Everywhere else it is as it was."""
    if "label_flip" not in settings.attack.kind or not is_bad(settings, place.index, place.nodes):
        return task
    return replace(task, train=task.train._replace(y=_flipped(task.name, task.train.y)))


def _flipped(name: str, y: Any) -> Any:
    if not str(getattr(y, "dtype", "")).removeprefix("torch.").startswith(("int", "uint")):
        raise TaskError(f"attack.kind = label_flip needs classes as labels, and those of task {name} are none")
    return y.max() - y
