"""The checkpoints of a node: the newest and the one before, `checkpoint-000007.safetensors` beside number 6.

A new one has a name of its own, so that nothing is overwritten: two whole ones are there while a third is written.
One that cannot be used is put aside and never removed; when none can, that is an error and no new beginning.
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
    """Those beside `checkpoint.safetensors`, which is itself number 0: once it was the only one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._name = re.compile(rf"{re.escape(path.stem)}-(\d+){re.escape(path.suffix)}")

    def files(self) -> dict[int, Path]:
        """By number, the newest first."""
        found = {0: self.path} if self.path.exists() else {}
        for path in self.path.parent.glob(f"{self.path.stem}-*{self.path.suffix}"):
            if match := self._name.fullmatch(path.name):
                found[int(match[1])] = path
        return dict(sorted(found.items(), reverse=True))

    def save(
        self, state: Mapping[str, Any], layout: Layout, *, told: Mapping[str, str] | None = None, **facts: str
    ) -> Path:
        """Write the next one. Raises StoreError, and those that were there stay."""
        number = max(self.files(), default=0) + 1
        path = self.path.with_name(f"{self.path.stem}-{number:06}{self.path.suffix}")
        try:
            save_checkpoint(path, state, layout, told=told, **facts)
        except StoreError:
            remove(path)  # it may have got its name before the error, and more of them would pile up
            raise
        self._prune()
        return path

    def load(self, layout: Layout, **facts: str) -> Checkpoint | None:
        """The newest that can be used, or None if there never was one."""
        refused: list[Unusable] = []
        for path in self.files().values():
            try:
                found = read_checkpoint(path, layout, **facts)
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
        """What is too old, and what a crash left half written. A failure costs room on the disk, nothing else."""
        leftovers = self.path.parent.glob(f".{self.path.stem}*{self.path.suffix}.tmp")
        try:
            for path in [*list(self.files().values())[KEPT:], *leftovers]:
                failpoint("checkpoint.prune")
                path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("an old checkpoint was not removed", error=f"{error.strerror or error}")

    def _put_aside(self, error: Unusable, used: Checkpoint) -> None:
        """Out of the way of those to come, and there to be looked at."""
        aside = _free(error.path, "damaged" if error.damaged else "foreign")
        try:
            failpoint("checkpoint.aside")
            error.path.rename(aside)
        except OSError as problem:
            aside = error.path
            log.warning("a checkpoint could not be put aside", file=str(error.path), error=str(problem))
        log.warning(
            f"checkpoint {error.path.name} cannot be used, going on from the one before",
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
            f"no checkpoint in {self.path.parent} can be used: {each}; "
            "restore one from a backup, or move them away to start anew at round 0"
        )


def _free(path: Path, word: str) -> Path:
    """A name that nobody has."""
    n, candidate = 1, path.with_name(f"{path.name}.{word}")
    while candidate.exists():
        n += 1
        candidate = path.with_name(f"{path.name}.{word}-{n}")
    return candidate
