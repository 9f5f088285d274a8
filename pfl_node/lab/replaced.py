"""The earlier contents of a results directory, while cells with changed settings are run again.

They are put back if the lab stops before one of these cells has a state, as after a mistyped setting.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable
from pathlib import Path

from pfl_node.sim.job_log import FILES
from pfl_node.store.atomic import writing

BRIEF = 60.0  # a lab that stops earlier has made no log that is worth a result
REPLACED = ".replaced"  # a directory that exists while the lab runs


class ReplacedResults:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / REPLACED
        self.cells: list[str] = []
        self._began = time.monotonic()

    def begin(self, names: Iterable[str]) -> None:
        """Copy the files of the whole directory, which are about to be written."""
        with writing(self.path):
            shutil.rmtree(self.path, ignore_errors=True)
            self.path.mkdir()
            for name in names:
                if (there := self.folder / name).is_dir():
                    shutil.copytree(there, self.path / name)
                elif there.exists():
                    shutil.copy2(there, self.path / name)

    def move(self, cell: str) -> None:
        """Move the directory of a cell away."""
        with writing(self.path):
            (self.path / cell).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / cell).rename(self.path / cell)
            self.cells.append(cell)

    def stopped(self) -> None:
        """The lab ends early: put everything back, unless a cell would lose a state or a result."""
        if self.cells and not any(map(self._has_begun, self.cells)):
            for cell in self.cells:
                shutil.rmtree(self.folder / cell, ignore_errors=True)
                (self.path / cell).rename(self.folder / cell)
            for old in (path for path in self.path.iterdir() if not self._is_part_of_cells(path.name)):
                self._put_back(old)
        self.drop()

    def drop(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def _put_back(self, old: Path) -> None:
        now = self.folder / old.name
        if now.is_dir():
            shutil.rmtree(now)
        old.replace(now)

    def _is_part_of_cells(self, name: str) -> bool:
        return any(cell.partition("/")[0] == name for cell in self.cells)

    def _has_begun(self, cell: str) -> bool:
        place, segments = self.folder / cell, self.folder / cell / "segments"
        brief = time.monotonic() < self._began + BRIEF
        logs = () if brief else segments.glob(FILES)
        states = (segments.glob("??????"), logs, place.glob("swarm"), place.glob("summary.json"))
        return any(True for found in states for _ in found)
