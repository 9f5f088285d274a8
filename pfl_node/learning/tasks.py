"""Find a task by name: a built-in one, `path/to/file.py:function` or `package.module:function`.

Imports torch only when a task is loaded.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from pfl_node import plugin
from pfl_node.errors import ConfigError, PflError, TaskError, nearest
from pfl_node.learning.task import Place, Task
from pfl_node.settings import DataSettings, TaskSettings


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """A task that is part of the package."""

    where: str  # module:function
    description: str


IMAGES = "pfl_node.learning.images"

TASKS: dict[str, BuiltIn] = {
    "digits": BuiltIn(
        "pfl_node.learning.digits:digits",
        "1,797 real handwritten digits (8x8), clusters by rotation; nothing to download",
    ),
    "cifar10": BuiltIn(f"{IMAGES}:cifar10", "60,000 colour photos (32x32) of 10 classes, as used by FACADE"),
    "fashion_mnist": BuiltIn(
        f"{IMAGES}:fashion_mnist", "70,000 grey images of clothes (28x28) of 10 classes, as used by PENS"
    ),
    "mnist": BuiltIn(f"{IMAGES}:mnist", "70,000 handwritten digits (28x28), as used by FedAvg"),
    "emnist": BuiltIn(f"{IMAGES}:emnist", "145,600 handwritten letters (28x28), as used by FedED"),
    "imagenette": BuiltIn(
        f"{IMAGES}:imagenette", "13,394 photos of 10 easy classes of ImageNet, as used by FACADE"
    ),
    "images": BuiltIn(
        f"{IMAGES}:images", "your own pictures: train/CLASS/IMAGE and test/CLASS/IMAGE under task.root"
    ),
}

TESTED = {"uniform": "the same mix of classes for all nodes", "own": "each node's own mix of classes"}
MAKERS = ("model", "autoencoder")  # fields of a Task: functions that build a module, or a module to copy


def load_task(settings: TaskSettings, place: Place, data: DataSettings | None = None) -> Task:
    """The task of this place, with validated data for all three splits."""
    if place.index is not None and place.nodes is not None and place.index >= place.nodes:
        raise ConfigError(f"task.index = {place.index}, but task.nodes = {place.nodes}: the last one is nodes - 1")
    function = find(settings.name)
    wanted = arguments(function, settings, place)

    from pfl_node.learning.data import complete
    from pfl_node.learning.seeding import seeded

    try:
        with seeded(place.seed):  # for a function that builds its model directly
            made = function(**wanted)
    except PflError:
        raise
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        raise TaskError(
            f"task {settings.name} failed{plugin.line_of(error)}: {plugin.in_a_line(error)}"
        ) from error
    return complete(as_task(made, settings.name), place.seed, data)


def find(name: str) -> Callable[..., Any]:
    check_name(name)
    found = plugin.load("task", TASKS[name].where if name in TASKS else name, TaskError)
    if not callable(found):
        raise TaskError(f"task {name}: expected a function, found {type(found).__name__}")
    return found  # type: ignore[no-any-return]


def check_name(name: str) -> None:
    """Check a name without running the user's file, which may import torch."""
    if name in TASKS:
        return
    if ":" in name:
        plugin.check_place("task", name, TaskError)
    elif name.endswith(".py"):
        raise ConfigError(f"task {name!r}: name a function of the file, {name}:FUNCTION")
    else:
        raise ConfigError(f"unknown task {name!r}; {nearest(name, TASKS)} (or FILE.py:FUNCTION)")


def arguments(function: Callable[..., Any], settings: TaskSettings, place: Place) -> dict[str, Any]:
    """The properties of the place that the function declares, and the section's other options."""
    declared = inspect.signature(function).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in declared.values())
    about = {f.name: getattr(place, f.name) for f in fields(Place)}
    known = [n for n, p in declared.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL) and n not in about]
    for option in settings.options:
        if option not in known and not takes_any:
            hint = nearest(option, known) if known else "it has no options"
            raise ConfigError(f"task {settings.name} has no option {option!r}; {hint}")
    for name in known:
        if name not in settings.options and declared[name].default is inspect.Parameter.empty:
            raise ConfigError(f"task {settings.name} needs its option {name!r}: --set task.{name}=…")
    return {n: v for n, v in about.items() if n in declared} | settings.options


def takes(name: str, option: str) -> bool:
    """Whether a task has this option. A user's file is imported."""
    declared = inspect.signature(find(name)).parameters
    return option in declared or any(p.kind is p.VAR_KEYWORD for p in declared.values())


def mix_of(settings: TaskSettings) -> str | None:
    """The `test_mix` of a task whose nodes have different class proportions; None: equal or unknown."""
    if settings.name not in TASKS:
        return None
    declared = inspect.signature(find(settings.name)).parameters
    values = {name: settings.options.get(name, p.default) for name, p in declared.items()}
    of_labels = values.get("partition") in ("shards", "paired_shards", "dirichlet")
    skewed = of_labels or (settings.name == "digits" and values["alpha"])
    return str(values["test_mix"]) if skewed else None


def as_task(made: Any, name: str) -> Task:
    """A Task from a function's result: a Task, a dict, or an object with these attributes."""
    known = [f.name for f in fields(Task)]
    if isinstance(made, Mapping):
        if unknown := [key for key in made if key not in known]:
            raise TaskError(f"task {name} returned an unknown {unknown[0]!r}; {nearest(str(unknown[0]), known)}")
        given = dict(made)
    else:
        given = {key: getattr(made, key) for key in known if hasattr(made, key)}
        if not given:
            raise TaskError(f"task {name} returned {_kind(made)}: return a dict or an object with model and train")
    for key in ("model", "train"):
        if given.get(key) is None:
            raise TaskError(f"task {name} returned no {key!r}: return a dict or an object with model and train")
    if isinstance(given.get("loss"), type):
        raise TaskError(f"task {name}: the loss is a class: give {given['loss'].__name__}(), an instance of it")
    kept = {"name": made.name if isinstance(made, Task) else name}
    makers = {key: _factory(given[key], key, name) for key in MAKERS if given.get(key) is not None}
    return Task(**given | kept | makers)


def _kind(made: Any) -> str:
    if inspect.iscoroutine(made):
        made.close()  # it is never awaited
        return "a coroutine (is it an async function?)"
    return "nothing" if made is None else f"a {type(made).__name__}"


def _factory(maker: Any, what: str, name: str) -> Callable[[], Any]:
    from torch import nn

    if isinstance(maker, nn.Module):
        return lambda: copy.deepcopy(maker, {id(p): p for p in maker.parameters() if not p.requires_grad})
    if callable(maker):
        return lambda: _made(maker, what, name)
    raise TaskError(
        f"task {name}: the {what} is of type {type(maker).__name__}, not an nn.Module or a function that makes one"
    )


def _made(maker: Callable[[], Any], what: str, name: str) -> Any:
    try:
        return maker()
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        raise TaskError(
            f"task {name}: the {what} cannot be built{plugin.line_of(error)}: {plugin.in_a_line(error)}"
        ) from error
