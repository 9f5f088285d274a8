"""Where a swarm keeps what its nodes write."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pfl_node.errors import ConfigError


@contextmanager
def directory(out: Path | None) -> Iterator[Path]:
    """The one asked for, or one that is gone afterwards. A run in which no node began leaves nothing there."""
    if out is None:
        with tempfile.TemporaryDirectory(prefix="pfl-swarm-", ignore_cleanup_errors=True) as folder:
            yield Path(folder)
        return
    nodes = out / "nodes"
    if nodes.exists() or (out / "summary.json").exists():
        raise ConfigError(f"{out} holds an earlier run; give another directory with --out, or remove it first")
    made = not out.exists()
    try:
        nodes.mkdir(parents=True)
    except OSError as error:
        raise ConfigError(f"cannot make {nodes}: {error.strerror or error}") from error
    try:
        yield out
    finally:
        if not any(nodes.glob("*/journal.jsonl")):
            shutil.rmtree(nodes, ignore_errors=True)
            if made:
                with suppress(OSError):
                    out.rmdir()
