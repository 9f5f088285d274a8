"""The user's own files that determine a result: a policy or a task named FILE.py:NAME, and the files in the same
directory that it imports. Their content is part of a cell's key; the results directory has a copy."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

from pfl_node.settings import Settings

COPIES = "sources"  # a directory of the results directory
NAMES = ("policy.name", "task.name")


def resolved(name: str, base: Path) -> str:
    """FILE.py:NAME of a spec in the directory `base`, with its absolute path; other names are returned unchanged.
    The spec in a results directory refers to the copies there."""
    file, _, wanted = name.rpartition(":")
    if not file.endswith(".py") or Path(file).is_absolute():
        return name
    beside, kept = base / file, base / COPIES / inside(file)
    found = kept if kept.is_file() and not beside.is_file() else beside
    return f"{found.resolve()}:{wanted}"


def inside(file: str) -> PurePosixPath:
    """The path without parts that lead out of its directory."""
    return PurePosixPath(*(part for part in Path(file).parts if part not in ("..", "/")))


def names_of(settings: Settings) -> dict[str, str]:
    return {"policy": settings.policy.name, "task": settings.task.name}


def digests(settings: Settings) -> dict[str, str]:
    """The digests, by file name, of the files that a cell runs besides pfl-node itself."""
    files = [(what, file) for what, name in names_of(settings).items() for file in files_of(name)]
    return {f"{what} {file.name}": sha256(file.read_bytes()).hexdigest() for what, file in files}


def copies(names: Iterable[tuple[str, str]]) -> Iterator[tuple[PurePosixPath, bytes]]:
    """The path and content of each copy, from names as written and as resolved."""
    for written, name in names:
        if files := list(files_of(name)):
            top = inside(written.rpartition(":")[0] or files[0].name)
            for file in files:
                yield top.parent / file.relative_to(files[0].parent).as_posix(), file.read_bytes()


def files_of(name: str) -> Iterator[Path]:
    """The file of a policy or a task, and the files in its directory that it imports, directly or indirectly."""
    where = name.rpartition(":")[0]
    top = Path(where) if where.endswith(".py") else _module(where)
    if top is None or not top.is_file():
        return
    found = [top]
    for file in found:  # grows in the loop
        yield file
        found += [other for other in _imported(file, top.parent) if other not in found]


def _imported(file: Path, folder: Path) -> list[Path]:
    """The files of the directory that a file imports."""
    try:
        tree = ast.parse(file.read_bytes())
    except SyntaxError:
        return []
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    return sorted(path for n in names if (path := folder / f"{n.replace('.', '/')}.py").is_file())


def _module(name: str) -> Path | None:
    """The file of package.module; None: there is none, or it is part of pfl-node."""
    try:
        found = find_spec(name) if name else None
    except (ImportError, ValueError):
        return None
    return Path(found.origin) if found and found.origin and not name.startswith("pfl_node.") else None
