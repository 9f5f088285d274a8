"""The directory of a swarm's files."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pfl_node.errors import ConfigError


@contextmanager
def directory(out: Path | None) -> Iterator[Path]:
    """`out`, or a temporary one. If no node got as far as its journal, the directory is removed."""
    if out is None:
        with tempfile.TemporaryDirectory(prefix="pfl-swarm-", ignore_cleanup_errors=True) as folder:
            yield Path(folder)
        return
    nodes = out / "nodes"
    if nodes.exists() or (out / "summary.json").exists():
        raise ConfigError(f"{out} holds an earlier run: choose another directory with --out, or remove it")
    made = not out.exists()
    try:
        nodes.mkdir(parents=True)
    except OSError as error:
        raise ConfigError(f"cannot create {nodes}: {error.strerror or error}") from error
    try:
        yield out
    finally:
        if not any(nodes.glob("*/journal.jsonl")):
            shutil.rmtree(nodes, ignore_errors=True)
            if made:
                with suppress(OSError):
                    out.rmdir()
