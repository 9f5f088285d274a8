"""Files that are either the old one or the new one, whatever happens in between."""

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
NOT_FOR_DIRECTORIES = frozenset({errno.EINVAL, errno.EBADF})  # what fsync says of them on some file systems


def write_atomic(path: Path, *pieces: Piece, what: str = "file") -> None:
    """Temp, fsync, rename, fsync of the directory. `what` is the first word of its fail points."""
    temp = temporary(path)
    with writing(path, leftover=temp):
        failpoint(f"{what}.create")
        with temp.open("wb", buffering=0) as file:
            _write(file, pieces, what)
            failpoint(f"{what}.fsync")
            os.fsync(file.fileno())
        failpoint(f"{what}.rename")
        temp.replace(path)
        failpoint(f"{what}.sync")
        sync_directory(path.parent)


def temporary(path: Path) -> Path:
    """Where a file is until it is whole."""
    return path.with_name(f".{path.name}.tmp")


def sync_directory(path: Path) -> None:
    """Where there is no such thing, nothing can be done about it."""
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
    """What the disk does not take is a StoreError, and what was begun is removed."""
    try:
        yield
    except OSError as error:
        if leftover:
            remove(leftover)
        raise StoreError(f"cannot write {path}: {error.strerror or error}") from error


def remove(path: Path) -> None:
    """What an error left behind."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return  # a directory that cannot be written to; the error that led here is the one to tell


def _write(file: FileIO, pieces: tuple[Piece, ...], what: str) -> None:
    *first, last = [memoryview(piece) for piece in pieces]
    for piece in first:
        _all(file, piece)
    half = len(last) // 2
    _all(file, last[:half])
    failpoint(f"{what}.write")
    _all(file, last[half:])


def _all(file: FileIO, view: memoryview) -> None:
    """An unbuffered write may take less than it is given."""
    while view:
        view = view[file.write(view) :]
