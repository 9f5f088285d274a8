"""User code, named as `path/file.py:Name` or `package.module:Name`: loading it, and attributing its failures."""

from __future__ import annotations

import ast
import errno
import hashlib
import importlib
import importlib.util
import os
import sys
import sysconfig
import threading
import traceback
import warnings
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from pfl_node.errors import ConfigError, LayoutMismatch, PflError, TaskError, Unavailable, nearest

PREFIX = "pfl_plugin_"  # of the modules made from files
FULL = (errno.ENOSPC, errno.EDQUOT)  # the disk is full


_given: dict[str, Any] = {}  # objects that a Python program passed, by place
_importing = threading.RLock()  # a file may import another one


def register(thing: Any) -> str:
    """The place of a function or class that a Python program passed. `load` finds it there in this process;
    others may import it."""
    home, name = getattr(thing, "__module__", "__main__"), getattr(thing, "__qualname__", type(thing).__name__)
    file = getattr(sys.modules.get(home), "__file__", None)
    by_file = home == "__main__" or home.startswith(PREFIX)
    place = f"{Path(file).resolve() if by_file and file else home}:{name}"
    _given[place] = thing
    return place


def check_importable(place: str) -> None:
    """Can another process load it? It must be at the top level of a module or file."""
    where, colon, name = place.rpartition(":")
    if colon and (where == "__main__" or not name.isidentifier()):
        raise ConfigError(f"{place} cannot be imported by another process: put it at the top level of a file")


def absolute(place: str) -> str:
    """The same place, valid in every working directory."""
    where, colon, name = place.rpartition(":")
    return f"{Path(where).resolve()}:{name}" if colon and where.endswith(".py") else place


def load(what: str, place: str, error: type[PflError]) -> Any:
    """The object at `place`. `what` ("policy", "task") starts the message of an `error`."""
    if place in _given:
        return _given[place]
    where, _, name = place.rpartition(":")
    is_file = _is_file(what, place, error)
    try:
        module = import_file(Path(where).resolve()) if is_file else _from_module(where)
    except (Exception, SystemExit) as failure:  # whatever the user's code raises
        raise error(f"{what} {place}: cannot be imported{line_of(failure)}: {in_a_line(failure)}") from failure
    if not hasattr(module, name):
        own = [n for n, v in vars(module).items() if getattr(v, "__module__", None) == module.__name__]
        hint = nearest(name, own) if own else "nothing is defined there"
        raise error(f"{what} {place}: there is no {name!r}; {hint}")
    return getattr(module, name)


def check_place(what: str, place: str, error: type[PflError]) -> None:
    """Check a plugin path without importing it: the file exists and parses."""
    where = Path(place.rpartition(":")[0])
    if place in _given or not _is_file(what, place, error):
        return
    try:
        with warnings.catch_warnings(action="ignore"):  # the import will repeat them
            compile(where.read_bytes(), where.name, "exec", dont_inherit=True)
    except (OSError, SyntaxError, ValueError) as failure:
        raise error(f"{what} {place}: cannot be imported: {in_a_line(failure)}") from failure


def check_name(what: str, place: str, error: type[PflError]) -> None:
    """Check without importing it that the file of a place defines the name."""
    where, _, name = place.rpartition(":")
    if place in _given or not _is_file(what, place, error):
        return
    found = _defined(ast.parse(Path(where).read_bytes()).body)
    if name not in found and "*" not in found:
        hint = nearest(name, found) if found else "nothing is defined there"
        raise error(f"{what} {place}: there is no {name!r}; {hint}")


def _defined(statements: list[ast.stmt]) -> set[str]:
    """The names that statements at the top level of a file bind, also within `if` or `try`."""
    found: set[str] = set()
    for statement in statements:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(statement.name)
            continue
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            elif isinstance(node, ast.alias):
                found.add(node.asname or node.name.partition(".")[0])
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(node.name)
    return found


def _is_file(what: str, place: str, error: type[PflError]) -> bool:
    """Whether the place is a file, which must exist, rather than a module."""
    where, _, name = place.rpartition(":")
    if not where.endswith(".py") and os.sep not in where:
        return False
    if not where.endswith(".py"):
        raise error(f"{what} {place}: a Python file ends in .py: {where}.py:{name}")
    if not Path(where).is_file():
        raise error(f"{what} {place}: there is no file {where} (looked in {Path.cwd()})")
    return True


def loaded_files() -> dict[str, str]:
    """The files that this process has imported, by module name, for a process that shares their objects."""
    modules = list(sys.modules.items())
    return {name: str(m.__file__) for name, m in modules if name.startswith(PREFIX) and m.__file__}


class FileFinder:
    """Finds these files by their module names, when an object of theirs is unpacked."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self._files = files

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        return importlib.util.spec_from_file_location(name, self._files[name]) if name in self._files else None


def import_file(path: Path) -> ModuleType:
    """Imported once per process, also if several threads ask for it at the same time."""
    with _importing:
        return _imported(path)


def _imported(path: Path) -> ModuleType:
    name = f"{PREFIX}{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, path
    assert spec.loader is not None, path
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # so that it can import the files beside it
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _from_module(name: str) -> ModuleType:
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    return importlib.import_module(name)


def in_a_line(error: BaseException) -> str:
    """The class of the error and the first line of its text."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


class Explanation(NamedTuple):
    """An error for people."""

    line: str
    mistake: bool = False  # the user's: exit code 2
    bug: bool = False  # ours: the traceback is worth printing


def explain(error: BaseException) -> Explanation:
    """Any error in one line, and whose fault it is. Of a group the first error counts."""
    if isinstance(error, BaseExceptionGroup):
        return explain(error.exceptions[0])
    if isinstance(error, PflError):
        mistake = isinstance(error, ConfigError | TaskError) and not isinstance(error, Unavailable)
        return Explanation(" ".join(str(error).split()), mistake=mistake)
    if isinstance(error, OSError) and error.errno in FULL:
        return Explanation(f"cannot write the results: {error.strerror}")
    if where := line_of(error):
        return Explanation(f"your code failed{where}: {in_a_line(error)}", mistake=True)
    return Explanation(in_a_line(error), bug=True)


def line_of(error: BaseException) -> str:
    """File and line of the user's code that the error passed through last; empty: none. A frame without an
    absolute path was compiled elsewhere, and a SyntaxError names its line itself. Libraries may be in the
    `site-packages` of another environment."""
    not_theirs = (str(Path(__file__).parent), sysconfig.get_path("stdlib"))
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        library = frame.filename.startswith(not_theirs) or {"site-packages", "dist-packages"} & set(path.parts)
        if path.is_absolute() and not library:
            return f" ({path.name}, line {frame.lineno})"
    return ""


def users_fault(what: str, place: str, error: Exception, kind: type[PflError]) -> PflError | None:
    """A one-line error for a failure in the code at `place` (`file.py:Name`); None: the failure is a bug of ours,
    which keeps its traceback."""
    where = line_of(error)
    if ":" in place and isinstance(error, LayoutMismatch):  # also if its base class, which is ours, raised it
        return kind(f"{what} {place} failed{where}: {error}")
    if ":" not in place or not where or isinstance(error, PflError):
        return None
    return kind(f"{what} {place} failed{where}: {in_a_line(error)}")
