"""Data poisoning: flips the training labels of a task. Works on arrays and tensors without importing torch."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pfl_node.errors import TaskError
from pfl_node.sim.attacks.colluders import is_malicious

if TYPE_CHECKING:
    from pfl_node.learning.task import Place, Task
    from pfl_node.settings import Settings


def poisoned(task: Task, settings: Settings, place: Place) -> Task:
    """At a malicious place, the task with label y of C classes changed to C - 1 - y; elsewhere the task itself."""
    if "label_flip" not in settings.attack.kind or not is_malicious(settings, place.index, place.nodes):
        return task
    return replace(task, train=task.train._replace(y=_flipped(task.name, task.train.y)))


def _flipped(name: str, y: Any) -> Any:
    if not str(getattr(y, "dtype", "")).removeprefix("torch.").startswith(("int", "uint")):
        raise TaskError(f"attack.kind = label_flip needs integer classes as labels, but task {name} has others")
    return y.max() - y
