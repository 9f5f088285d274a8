"""Where an experiment keeps what it found: its spec, the machine it ran on, and a folder for every cell.

A cell is done when its summary is there. One that was made with other settings is made anew.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pfl_node.errors import ConfigError, StoreError
from pfl_node.lab.experiment import Backend, Cell, Experiment
from pfl_node.ops.environment import environment
from pfl_node.store.atomic import write_atomic, writing

SPEC, TOLD, SUMMARY, JOURNAL = "spec.toml", "settings.json", "summary.json", "journal.jsonl"
ENVIRONMENT, MADE_WITH = "environment.json", "made_with.json"


class ResultsDir:
    """The results of one experiment at one scale."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def prepare(self, experiment: Experiment) -> None:
        """Make it, with the spec and the machine in it; what cells of before found stays."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"cannot make {self.path}: {error.strerror or error}") from error
        self._check(experiment)
        write_atomic(self.path / SPEC, experiment.text.encode())
        facts: dict[str, Any] = {"name": experiment.name, "scale": experiment.scale, "backend": experiment.backend}
        facts |= {"seeds": list(experiment.seeds), **environment()}
        write_atomic(self.path / ENVIRONMENT, json.dumps(facts, indent=1).encode())

    def _check(self, experiment: Experiment) -> None:
        """What was found before is not thrown away for something else."""
        there = _json(self.path / ENVIRONMENT)
        if not there or not any(self.path.glob(f"**/{SUMMARY}")):
            return
        backend, name, scale = backend_of(there), there.get("name"), there.get("scale")
        other = ""
        if name != experiment.name and self._spec() != experiment.text:
            other = f"experiment {name}"
        elif scale != experiment.scale:
            other = f"--scale {scale}"
        elif backend != experiment.backend:
            other = f"--backend {backend}"
        if other:
            raise ConfigError(f"{self.path} holds results of {other}: say with --out where these shall go")

    def _spec(self) -> str | None:
        try:
            return (self.path / SPEC).read_text(encoding="utf-8")
        except (OSError, ValueError):
            return None

    def place(self, cell: Cell) -> Path:
        return self.path / cell.folder

    def is_done(self, cell: Cell) -> bool:
        return (self.place(cell) / SUMMARY).exists() and self._told(cell) == told_of(cell)

    def begin(self, cell: Cell) -> None:
        """What was begun with the same settings stays, to be gone on from."""
        place = self.place(cell)
        with writing(place):
            if place.exists() and self._told(cell) != told_of(cell):
                shutil.rmtree(place)
            place.mkdir(parents=True, exist_ok=True)
            (place / SUMMARY).unlink(missing_ok=True)
        write_atomic(place / TOLD, json.dumps(told_of(cell), indent=1).encode())
        self._note(cell)

    def _note(self, cell: Cell) -> None:
        """With what it is made; what is gone on from may have been begun with something else."""
        path, now = self.place(cell) / MADE_WITH, environment()
        before: list[dict[str, Any]] = (_json(path) or {}).get("environments", [])
        if not before or {key: value for key, value in before[-1].items() if key != "begun"} != now:
            begun = datetime.now(UTC).isoformat(timespec="seconds")
            made = {"environments": [*before, {"begun": begun, **now}]}
            write_atomic(path, json.dumps(made, indent=1).encode())

    def summary(self, cell: Cell) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.place(cell) / SUMMARY).read_text(encoding="utf-8"))
        return found

    def rows(self, cell: Cell) -> Iterator[dict[str, Any]]:
        """The journal's."""
        with (self.place(cell) / JOURNAL).open(encoding="utf-8") as lines:
            for line in lines:
                yield json.loads(line)

    def _told(self, cell: Cell) -> Any:
        told = _json(self.place(cell) / TOLD)
        return told and {"backend": backend_of(told), **told}


def _json(path: Path) -> dict[str, Any] | None:
    """None: it is not there, or damaged."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found


def backend_of(told: Mapping[str, Any]) -> Backend:
    """Of a cell or of all, as its file tells; once there was the simulator only."""
    backend: Backend = told.get("backend", "sim")
    return backend


def told_of(cell: Cell) -> dict[str, Any]:
    """What decides the result of a cell."""
    return {"backend": cell.backend, "nodes": cell.nodes, "settings": cell.settings.model_dump(mode="json")}
