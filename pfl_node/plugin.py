"""What a user names by its place: `path/file.py:Name` or `package.module:Name`. Knows nothing of what it finds."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from pfl_node.errors import ConfigError, nearest


def load(what: str, place: str) -> Any:
    """The thing at a place; `what` is the word for it in an error ("policy", "task")."""
    source, _, name = place.rpartition(":")
    module = _from_file(what, Path(source)) if source.endswith(".py") else _from_module(what, source)
    if not hasattr(module, name):
        own = [n for n, v in vars(module).items() if getattr(v, "__module__", None) == module.__name__]
        hint = nearest(name, own) if own else "nothing is defined there"
        raise ConfigError(f"{what} {place!r}: {source} has no {name!r}; {hint}")
    return getattr(module, name)


def _from_file(what: str, path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigError(f"{what}: there is no file {str(path)!r}")
    name = f"pfl_{what}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, path
    assert spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pydantic look a class's annotations up there
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever the user's file raises
        del sys.modules[name]
        raise ConfigError(f"{what}: {path} cannot be imported: {_in_a_line(error)}") from error
    return module


def _from_module(what: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise ConfigError(f"{what}: {name!r} cannot be imported: {_in_a_line(error)}") from error


def _in_a_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
