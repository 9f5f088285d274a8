"""Atomic file replacement: after a crash, a file has either its old or its new content."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

from pfl_node.errors import StoreError
from pfl_node.failpoints import failpoint

Piece = bytes | memoryview
NOT_FOR_DIRECTORIES = frozenset({errno.EINVAL, errno.EBADF})  # fsync of a directory on some file systems


def write_atomic(path: Path, *pieces: Piece, what: str = "file") -> None:
    """Write a temporary file, fsync, rename, fsync the directory. `what` is the prefix of the fail points."""
    temp = temporary(path)
    with writing(path, leftover=temp):
        failpoint(f"{what}.create")
        temp.unlink(missing_ok=True)  # a crash left it, or someone else put a link there
        with temp.open("xb", buffering=0) as file:
            _write(file, pieces, what)
            failpoint(f"{what}.fsync")
            os.fsync(file.fileno())
        failpoint(f"{what}.rename")
        temp.replace(path)
        failpoint(f"{what}.sync")
        sync_directory(path.parent)


@contextmanager
def private_files() -> Iterator[None]:
    """Files and directories that this process creates are for its own user only."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.tmp")


def sync_directory(path: Path) -> None:
    """Does nothing on file systems that cannot sync directories."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in NOT_FOR_DIRECTORIES:
            raise
    finally:
        os.close(handle)


@contextmanager
def writing(path: Path, *, leftover: Path | None = None) -> Iterator[None]:
    """Convert an OSError to a StoreError, and remove the leftover."""
    try:
        yield
    except OSError as error:
        if leftover:
            remove(leftover)
        raise StoreError(f"cannot write {path}: {error.strerror or error}") from error


def make_directory(path: Path) -> None:
    """With its parents, unless it exists."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot create {path}: {error.strerror or error}") from error


def remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return  # report the original error instead


def _write(file: FileIO, pieces: tuple[Piece, ...], what: str) -> None:
    *first, last = [memoryview(piece) for piece in pieces]
    for piece in first:
        _all(file, piece)
    half = len(last) // 2
    _all(file, last[:half])
    failpoint(f"{what}.write")
    _all(file, last[half:])


def _all(file: FileIO, view: memoryview) -> None:
    """An unbuffered write may be partial."""
    while view:
        view = view[file.write(view) :]
