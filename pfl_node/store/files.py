"""Files that are either the old one or the new one, whatever happens in between."""

from __future__ import annotations

import os
from pathlib import Path

from pfl_node.errors import StoreError


def write_atomic(path: Path, data: bytes) -> None:
    """Temp, fsync, rename, fsync of the directory."""
    temp = path.with_name(f".{path.name}.tmp")
    try:
        with temp.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temp.replace(path)
        sync_directory(path.parent)
    except OSError as error:
        temp.unlink(missing_ok=True)
        raise StoreError(f"cannot write {path}: {error.strerror or error}") from error


def sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
