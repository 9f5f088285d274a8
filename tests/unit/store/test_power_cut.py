"""The power goes at every step of a checkpoint, and the disk forgets what it was not told to keep.

A model of a hostile disk: what a file holds is sure after its fsync, which names a directory has after the
directory's; all else may have happened or not, each for itself, and a file that was not synced may be cut off.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from stat import S_ISDIR

import pytest

from pfl_node.errors import StoreError
from pfl_node.store import atomic
from pfl_node.store import checkpoints as generations
from pfl_node.store.checkpoints import Checkpoints
from tests.toy import LAYOUT, constant

Names = dict[str, int]  # to inodes


class Disk:
    """Watches a directory, and tells what may be left of it."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, deaf_to: str) -> None:
        self.folder = folder
        self.deaf_to = deaf_to  # "file" or "directory": that fsync does nothing
        self.names: Names = {}  # that are sure
        self.contents: dict[int, bytes] = {}  # that are sure
        self._fsync = os.fsync
        patch.setattr("os.fsync", self.fsync)

    def fsync(self, handle: int) -> None:
        self._fsync(handle)
        about = os.fstat(handle)
        if ("directory" if S_ISDIR(about.st_mode) else "file") == self.deaf_to:
            return
        if S_ISDIR(about.st_mode):
            self.names = self.live()
        else:
            [path] = [p for p in self.folder.iterdir() if p.stat().st_ino == about.st_ino]
            self.contents[about.st_ino] = path.read_bytes()

    def live(self) -> Names:
        return {path.name: path.stat().st_ino for path in self.folder.iterdir()}

    def outcomes(self) -> Iterator[dict[str, bytes]]:
        """Every directory that may be found when the power is back."""
        live = self.live()
        bytes_of = self.contents | {inode: (self.folder / name).read_bytes() for name, inode in live.items()}
        names = sorted({*live, *self.names})
        choices = [{self.names.get(name), live.get(name)} for name in names]
        for inodes in product(*choices):
            found = {name: inode for name, inode in zip(names, inodes, strict=True) if inode is not None}
            for held in product(*(self._may_hold(inode, bytes_of[inode]) for inode in found.values())):
                yield dict(zip(found, held, strict=True))

    def _may_hold(self, inode: int, data: bytes) -> set[bytes]:
        return {data} if self.contents.get(inode) == data else {b"", data[: len(data) // 2], data}


class Trial:
    """A power cut at every moment; what is found then must be what was finished or what was being written."""

    def __init__(self, disk: Disk, trash: Path) -> None:
        self.disk = disk
        self.trash = trash
        self.finished = -1
        self.cuts = 0

    def moment(self, name: str = "") -> bool:
        for left in self.disk.outcomes():
            self.cuts += 1
            folder = self.trash / str(self.cuts)
            folder.mkdir()
            for file, data in left.items():
                (folder / file).write_bytes(data)
            allowed = {self.finished, self.finished + 1} if name else {self.finished}
            assert self.found(folder) in allowed, (name, self.finished, {f: len(d) for f, d in left.items()})
        return False

    def found(self, folder: Path) -> int:
        found = Checkpoints(folder / "checkpoint.safetensors").load(LAYOUT)
        if found is None:
            return -1
        assert found.state["model"] == constant(found.state["round"])
        return int(found.state["round"])


def run(path: Path, patch: pytest.MonkeyPatch, deaf_to: str = "") -> Trial:
    """Four checkpoints, and the power goes at every step of each."""
    folder, trash = path / "node", path / "trash"
    folder.mkdir()
    trash.mkdir()
    trial = Trial(Disk(folder, patch, deaf_to), trash)
    patch.setattr(atomic, "failpoint", trial.moment)
    patch.setattr(generations, "failpoint", trial.moment)
    for round in range(4):
        Checkpoints(folder / "checkpoint.safetensors").save({"model": constant(round), "round": round}, LAYOUT)
        trial.finished = round
        trial.moment()
    return trial


def test_whenever_the_power_goes_the_last_checkpoint_or_the_one_under_way_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(tmp_path, monkeypatch).cuts > 50


@pytest.mark.parametrize("deaf_to", ["file", "directory"])
def test_a_sync_that_does_not_happen_would_be_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deaf_to: str
) -> None:
    with pytest.raises((AssertionError, StoreError)):
        run(tmp_path, monkeypatch, deaf_to)
