"""Finding a task by its name: a built-in one, `path/to/file.py:function` or `package.module:function`.

Imports torch only when a task is loaded.
"""

from __future__ import annotations

import copy
import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from pfl_node.errors import ConfigError, PflError, TaskError, nearest
from pfl_node.learning.task import Place, Task
from pfl_node.settings import TaskSettings


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """A task that comes along."""

    where: str  # module:function
    description: str


TASKS: dict[str, BuiltIn] = {
    "digits": BuiltIn(
        "pfl_node.learning.digits:digits",
        "1,797 real handwritten digits (8x8), clusters by rotation; nothing to download",
    ),
}


def load_task(settings: TaskSettings, place: Place) -> Task:
    """The task of this place, with its data as checked tensors and all three splits."""
    if place.index is not None and place.nodes is not None and place.index >= place.nodes:
        raise ConfigError(f"task.index = {place.index}, but task.nodes = {place.nodes}: the last one is nodes - 1")
    function = find(settings.name)
    wanted = arguments(function, settings, place)

    from pfl_node.learning.chance import seeded
    from pfl_node.learning.data import complete

    try:
        with seeded(place.seed):  # for a function that makes its model on the spot
            made = function(**wanted)
    except PflError:
        raise
    except Exception as error:
        raise TaskError(f"task {settings.name} failed{_where(error)}: {_say(error)}") from error
    return complete(as_task(made, settings.name), place.seed)


def find(name: str) -> Callable[..., Any]:
    """The function that a name stands for."""
    if name in TASKS:
        name = TASKS[name].where
    where, colon, function = name.rpartition(":")
    if not colon:
        if name.endswith(".py"):
            raise ConfigError(f"task {name!r}: say which function of the file, {name}:FUNCTION")
        raise ConfigError(f"there is no task {name!r}; {nearest(name, TASKS)} (or FILE.py:FUNCTION)")
    is_file = where.endswith(".py") or os.sep in where
    module = _import_file(Path(where)) if is_file else _import_module(where)
    found = getattr(module, function, None)
    if not callable(found):
        known = [
            n
            for n, f in vars(module).items()
            if inspect.isfunction(f) and f.__module__ == module.__name__ and n[0] != "_"
        ]
        hint = nearest(function, known) if known else "it defines no function at all"
        raise TaskError(f"{where} has no function {function!r}; {hint}")
    return found  # type: ignore[no-any-return]


def arguments(function: Callable[..., Any], settings: TaskSettings, place: Place) -> dict[str, Any]:
    """What of the place the function declares, and the section's other options."""
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


def as_task(made: Any, name: str) -> Task:
    """A Task from what a function gave: a Task, a dict, or any object with these attributes."""
    if isinstance(made, Task):
        return replace(made, model=_factory(made.model, name))
    known = [f.name for f in fields(Task)]
    if isinstance(made, Mapping):
        if unknown := [key for key in made if key not in known]:
            raise TaskError(f"task {name} gave an unknown {unknown[0]!r}; {nearest(str(unknown[0]), known)}")
        given = dict(made)
    else:
        given = {key: getattr(made, key) for key in known if hasattr(made, key)}
    for key in ("model", "train"):
        if given.get(key) is None:
            raise TaskError(f"task {name} gave no {key!r}: return a dict or an object with model and train")
    return Task(**given | {"name": name, "model": _factory(given["model"], name)})


def _factory(model: Any, name: str) -> Callable[[], Any]:
    from torch import nn

    if isinstance(model, nn.Module):
        return lambda: copy.deepcopy(model)
    if callable(model):
        return model  # type: ignore[no-any-return]
    raise TaskError(
        f"task {name}: the model is of type {type(model).__name__}, not an nn.Module or a function that makes one"
    )


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise TaskError(f"there is no file {path} (looked in {Path.cwd()})")
    path = path.resolve()
    name = f"pfl_task_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise TaskError(f"{path} is not a Python file: its name must end in .py")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # for the files beside it
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise TaskError(f"{path} cannot be imported{_where(error)}: {_say(error)}") from error
    return module


def _import_module(name: str) -> ModuleType:
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise TaskError(f"module {name} cannot be imported{_where(error)}: {_say(error)}") from error


def _say(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}".rstrip(
        ": "
    )


def _where(error: Exception) -> str:
    """The place in the user's code that failed."""
    if isinstance(error, SyntaxError):
        return ""  # its text says it
    ours, libraries = str(Path(__file__).parent), os.sep + "site-packages" + os.sep
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith((ours, "<")) and libraries not in frame.filename:
            return f" ({Path(frame.filename).name}, line {frame.lineno})"
    return ""
