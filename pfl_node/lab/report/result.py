"""A result's folder, opened again: the experiment as it was run, what it found, where, and by which command.

Everything is taken from the folder, so that it can be read where and when nothing of it can be run.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pfl_node.errors import ConfigError
from pfl_node.lab import results, spec
from pfl_node.lab.experiment import Cell, Experiment
from pfl_node.lab.results import Results
from pfl_node.lab.results_dir import ENVIRONMENT, MADE_WITH, SPEC, SUMMARY, TOLD, ResultsDir, backend_of
from pfl_node.settings import Settings

Flat = dict[str, Any]  # dotted keys


@dataclass(frozen=True)
class Result:
    folder: ResultsDir
    results: Results

    @property
    def experiment(self) -> Experiment:
        return self.results.experiment

    @cached_property
    def facts(self) -> Mapping[str, Any]:
        """Versions, commit and machine."""
        return _json(self.folder.path / ENVIRONMENT)

    @cached_property
    def command(self) -> str:
        """What repeats it."""
        experiment = self.experiment
        name = experiment.name
        if name not in spec.shipped() or spec.read(name)[1] != experiment.text:
            name = str(self.folder.path / SPEC)
        size = ["--scale", experiment.scale, "--seeds", str(len(experiment.seeds))]
        size += ["--backend", experiment.backend] if experiment.backend != "sim" else []
        wishes = [f"{key}={_toml(value)}" for key, value in self._wishes().items()]
        sets = [word for wish in wishes for word in ("--set", wish)]
        return shlex.join(["pfl-node", "lab", "run", name, *size, *sets])

    def _wishes(self) -> Flat:
        """The settings that all cells have and the spec does not give them."""
        wished: Flat | None = None
        planned = {cell.folder: cell for cell in _planned(self.folder.path, self.experiment).cells}
        for cell in self.experiment.cells:
            plan, told = flat(planned[cell.folder].settings), self.told(cell)
            ours = {key for key in told if key in plan or key.startswith(("task.", "policy."))}
            own = {key: told[key] for key in told if key in ours and plan.get(key) != told[key]}
            wished = own if wished is None else {k: v for k, v in wished.items() if own.get(k) == v}
        return wished or {}

    def told(self, cell: Cell) -> Flat:
        """The settings a cell was run with."""
        path = self.folder.place(cell) / TOLD
        return _flat(_json(path)["settings"]) if path.exists() else flat(cell.settings)

    def made_with(self, cell: Cell) -> list[Mapping[str, Any]]:
        """Versions, commit and machine of a cell: several, if it was gone on with elsewhere."""
        path = self.folder.place(cell) / MADE_WITH
        return list(_json(path)["environments"]) if path.exists() else [self.facts]

    @cached_property
    def environments(self) -> list[Mapping[str, Any]]:
        """Those of all cells that are done."""
        return [made for cell in self.results.found for made in self.made_with(cell)] or [self.facts]

    def seconds(self, what: str) -> float:
        """wall or cpu, of all cells that are done."""
        return sum(found.summary.get(f"{what}_seconds") or 0.0 for found in self.results.found.values())


def reopen(path: Path) -> Result:
    """A folder that `lab run` made, whatever became of the rest since."""
    for name in (SPEC, ENVIRONMENT):
        if not (path / name).is_file():
            raise ConfigError(f"{path} is no result of `pfl-node lab run`: it has no {name}")
    facts = _json(path / ENVIRONMENT)
    if not isinstance(facts, dict) or not facts.keys() >= {"name", "scale", "seeds"}:
        raise ConfigError(f"{path} is no result of `pfl-node lab run`: its {ENVIRONMENT} is of something else")
    planned = _load(path, facts["name"], facts["scale"], len(facts["seeds"]))
    folder = Done(path)
    planned = planned.on(backend_of(facts))
    experiment = replace(planned, cells=tuple(_as_run(folder, cell) for cell in planned.cells))
    return Result(folder, results.read(experiment, folder))


class Done(ResultsDir):
    """Cells that have a summary are done, also those that were made before a setting was added."""

    def is_done(self, cell: Cell) -> bool:
        return (self.place(cell) / SUMMARY).exists()


def _as_run(folder: ResultsDir, cell: Cell) -> Cell:
    """With the settings beside its results; those may be older than what can be read now."""
    path = folder.place(cell) / TOLD
    if not path.exists():
        return cell
    told = _json(path)
    as_run = replace(cell, nodes=told["nodes"], backend=backend_of(told))
    try:
        return replace(as_run, settings=Settings.model_validate(told["settings"]))
    except ValidationError:
        return as_run


def _planned(path: Path, experiment: Experiment) -> Experiment:
    return _load(path, experiment.name, experiment.scale, len(experiment.seeds))


def _load(path: Path, name: str, scale: Any, seeds: int) -> Experiment:
    return replace(spec.load(str(path / SPEC), scale, seeds=seeds), name=name)


def _json(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    return found


# -- settings as dotted keys -----------------------------------------------------------------------------------


def flat(settings: Settings) -> Flat:
    return _flat(settings.model_dump(mode="json"))


def _flat(tree: Mapping[str, Any]) -> Flat:
    """One level deep: what a section holds may be a table of the task's own."""
    found: Flat = {}
    for key, value in tree.items():
        found |= {f"{key}.{leaf}": v for leaf, v in value.items()} if isinstance(value, Mapping) else {key: value}
    return found


def not_default(told: Flat) -> Flat:
    """What is set, and always what is learnt and how; the seed has its own place."""
    usual = {k: v for k, v in flat(Settings()).items() if k not in ("policy.name", "task.name")}
    return {k: v for k, v in told.items() if k != "seed" and (k not in usual or usual[k] != v)}


def _toml(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
