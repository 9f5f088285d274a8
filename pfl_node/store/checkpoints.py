"""The checkpoints of a node: the newest and its predecessor, for example `checkpoint-000007.safetensors` and
number 6.

Nothing is overwritten: two complete checkpoints exist while a third is written. An unusable one is renamed, never
removed. If none is usable, that is an error, not a fresh start.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import structlog

from pfl_node.errors import StoreError, Unusable
from pfl_node.failpoints import failpoint
from pfl_node.model import Layout
from pfl_node.store.atomic import remove
from pfl_node.store.checkpoint import Checkpoint, read_checkpoint, save_checkpoint

log = structlog.get_logger(__name__)

KEPT = 2


class Checkpoints:
    """The numbered files beside `checkpoint.safetensors`, which older versions wrote and which is number 0."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._name = re.compile(rf"{re.escape(path.stem)}-(\d+){re.escape(path.suffix)}")

    def files(self) -> dict[int, Path]:
        """By number, newest first. Raises StoreError when the directory cannot be read."""
        found = {0: self.path} if self.path.exists() else {}
        try:
            paths = list(self.path.parent.glob(f"{self.path.stem}-*{self.path.suffix}"))
        except OSError as error:
            raise StoreError(f"cannot read {self.path.parent}: {error.strerror or error}") from error
        for path in paths:
            if match := self._name.fullmatch(path.name):
                found[int(match[1])] = path
        return dict(sorted(found.items(), reverse=True))

    def save(
        self, state: Mapping[str, Any], layout: Layout, *, metadata: Mapping[str, str] | None = None, **facts: str
    ) -> Path:
        """Write the next one. Raises StoreError and keeps the existing ones."""
        number = max(self.files(), default=0) + 1
        path = self.path.with_name(f"{self.path.stem}-{number:06}{self.path.suffix}")
        try:
            save_checkpoint(path, state, layout, metadata=metadata, **facts)
        except StoreError:
            remove(path)  # it may have been renamed before the error
            raise
        self._prune()
        return path

    def load(self, layout: Layout, **facts: str) -> Checkpoint | None:
        """The newest usable one; None if there never was one."""
        refused: list[Unusable] = []
        for path in self.files().values():
            try:
                found = read_checkpoint(path, layout, predictions=None, **facts)
            except Unusable as error:
                refused.append(error)
                continue
            if found:
                for unusable in refused:
                    self._put_aside(unusable, found)
                return found
        if refused:
            raise self._none(refused)
        return None

    def _prune(self) -> None:
        """Remove old checkpoints and leftovers of a crash. A failure only costs disk space."""
        leftovers = self.path.parent.glob(f".{self.path.stem}*{self.path.suffix}.tmp")
        try:
            for path in [*list(self.files().values())[KEPT:], *leftovers]:
                failpoint("checkpoint.prune")
                path.unlink(missing_ok=True)
        except (OSError, StoreError) as error:
            log.warning("cannot remove an old checkpoint", error=getattr(error, "strerror", None) or str(error))

    def _put_aside(self, error: Unusable, used: Checkpoint) -> None:
        """Rename an unusable checkpoint, so that it can be examined."""
        aside = _free(error.path, "damaged" if error.damaged else "foreign")
        try:
            failpoint("checkpoint.aside")
            error.path.rename(aside)
        except OSError as problem:
            aside = error.path
            log.warning("cannot rename an unusable checkpoint", file=str(error.path), error=str(problem))
        log.warning(
            f"checkpoint {error.path.name} is unusable, continuing from an older one",
            why=error.why,
            used=used.path.name,
            round=used.state.get("round"),
            kept_as=str(aside),
        )

    def _none(self, refused: list[Unusable]) -> StoreError:
        if len(refused) == 1 or not any(error.damaged for error in refused):
            return refused[0]
        each = ", ".join(f"{error.path.name} is {error.why}" for error in refused)
        return StoreError(
            f"no checkpoint in {self.path.parent} is usable: {each}; "
            "restore one from a backup, or move them away to start again at round 0"
        )


def _free(path: Path, word: str) -> Path:
    n, candidate = 1, path.with_name(f"{path.name}.{word}")
    while candidate.exists():
        n += 1
        candidate = path.with_name(f"{path.name}.{word}-{n}")
    return candidate
