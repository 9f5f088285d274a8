"""The results directory of an experiment: its spec, its environment, and a directory for every cell.

A cell is done when it has a summary for the same settings and the same content of the user's policy and task.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pfl_node.errors import ConfigError
from pfl_node.jsonable import json_object
from pfl_node.lab import sources
from pfl_node.lab.experiment import Backend, Cell, Experiment
from pfl_node.lab.replaced import ReplacedResults
from pfl_node.lab.resumption import is_held
from pfl_node.lab.sweeps import keys_of
from pfl_node.ops.environment import environment
from pfl_node.store.atomic import make_directory, write_atomic, writing

SPEC, SETTINGS, SUMMARY, JOURNAL = "spec.toml", "settings.json", "summary.json", "journal.jsonl"
ENVIRONMENT, MADE_WITH = "environment.json", "made_with.json"
TOP = (
    SPEC,
    sources.COPIES,
    "plots",
    "report.html",
    "results.json",
    "table.md",
)  # files besides those of the cells


class ResultsDir:
    """The results of one experiment at one scale."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.replaced = ReplacedResults(path)

    def prepare(self, experiment: Experiment) -> None:
        """Create it with spec and environment. Finished cells stay."""
        make_directory(self.path)
        self._check(experiment)
        if (self.path / ENVIRONMENT).exists():
            self.replaced.begin((ENVIRONMENT, SPEC, sources.COPIES))
        facts: dict[str, Any] = {"name": experiment.name, "scale": experiment.scale, "backend": experiment.backend}
        facts |= {"seeds": list(experiment.seeds), "sweeps": list(experiment.sweeps), **environment()}
        write_atomic(self.path / ENVIRONMENT, json.dumps(facts, indent=1).encode())  # makes the directory ours
        write_atomic(self.path / SPEC, experiment.text.encode())
        for place, content in sources.copies(experiment.sources):
            copy = self.path / sources.COPIES / place
            make_directory(copy.parent)
            write_atomic(copy, content)

    def _check(self, experiment: Experiment) -> None:
        """Refuse to overwrite the results of something else."""
        if not (self.path / ENVIRONMENT).exists():
            self._check_unused(experiment)
        there = read_object(self.path / ENVIRONMENT)
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
        elif (keys := keys_of(there.get("sweeps", []))) != keys_of(experiment.sweeps):
            other = " ".join(f"--sweep {key}" for key in keys) or "no --sweep"
        if other:
            raise ConfigError(f"{self.path} holds results of {other}: choose another directory with --out")

    def _check_unused(self, experiment: Experiment) -> None:
        """Refuse to overwrite files that no lab wrote, as with `--out .` beside a paper's plots."""
        ours = {*TOP, *(cell.folder.partition("/")[0] for cell in experiment.cells)}
        if theirs := sorted(name for name in ours if (self.path / name).exists()):
            raise ConfigError(
                f"{self.path} is not a results directory of `pfl-node lab run`, but has {theirs[0]}: "
                "choose another directory with --out"
            )

    def _spec(self) -> str | None:
        try:
            return (self.path / SPEC).read_text(encoding="utf-8")
        except (OSError, ValueError):
            return None

    def place(self, cell: Cell) -> Path:
        return self.path / cell.folder

    def is_done(self, cell: Cell) -> bool:
        return (self.place(cell) / SUMMARY).exists() and self._settings(cell) == key_of(cell)

    def begin(self, cell: Cell) -> None:
        """An interrupted cell with the same settings is kept, so that it can be resumed."""
        place = self.place(cell)
        with writing(place):
            if place.exists() and self._settings(cell) != key_of(cell):
                self.replaced.move(cell.folder)
            place.mkdir(parents=True, exist_ok=True)
            (place / SUMMARY).unlink(missing_ok=True)
        write_atomic(place / SETTINGS, json.dumps(key_of(cell), indent=1).encode())

    def summary(self, cell: Cell) -> dict[str, Any]:
        return _parsed((self.place(cell) / SUMMARY).read_text(encoding="utf-8"))

    def rows(self, cell: Cell) -> Iterator[dict[str, Any]]:
        with (self.place(cell) / JOURNAL).open(encoding="utf-8") as lines:
            for line in lines:
                yield _parsed(line)

    def _settings(self, cell: Cell) -> Any:
        row = read_object(self.place(cell) / SETTINGS)
        return row and {"backend": backend_of(row), **row}


def record_environment(place: Path) -> None:
    """Record the environment of the process that runs the cell. Another process may have begun the cell."""
    path, now = place / MADE_WITH, environment()
    before: list[dict[str, Any]] = read_object(path).get("environments", [])
    if not before or {key: value for key, value in before[-1].items() if key != "begun"} != now:
        begun = datetime.now(UTC).isoformat(timespec="seconds")
        made = {"environments": [*before, {"begun": begun, **now}]}
        write_atomic(path, json.dumps(made, indent=1).encode())


def _parsed(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(f"not a JSON object: {text[:20]!r}")
    return value


def read_object(path: Path) -> dict[str, Any]:
    """The content of a JSON file; empty: missing or damaged."""
    try:
        return json_object(path.read_bytes())
    except OSError:
        return {}


def backend_of(row: Mapping[str, Any]) -> Backend:
    """Old files have no backend: there was only the simulator."""
    backend: Backend = row.get("backend", "sim")
    return backend


def settings_of(cell: Cell) -> dict[str, Any]:
    """Everything that determines the result of a cell. User files are identified by their content, not their
    path."""
    settings = cell.settings.model_dump(mode="json")
    for section, name in sources.names_of(cell.settings).items():
        settings[section]["name"] = name.rpartition("/")[2]
    row = {"backend": cell.backend, "nodes": cell.nodes, "settings": settings}
    digests = sources.digests(cell.settings)
    return {**row, "sources": digests} if digests else row


def key_of(cell: Cell) -> dict[str, Any]:
    """The content of settings.json, by which a run is found to be done. Old runs that were held to be saved,
    although that changed their result, have no `held` and are repeated."""
    return settings_of(cell) | ({} if is_held(cell) else {"held": False})
