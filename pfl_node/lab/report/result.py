"""Opens a results directory: the experiment as it was run, its results, its environment and its command.

Everything is read from the directory, so it works where the experiment cannot be run.
"""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from pfl_node.errors import ConfigError
from pfl_node.lab import results, spec
from pfl_node.lab.experiment import Cell, Experiment, Scale
from pfl_node.lab.report import phrases
from pfl_node.lab.results import Results
from pfl_node.lab.results_dir import (
    ENVIRONMENT,
    MADE_WITH,
    SETTINGS,
    SPEC,
    SUMMARY,
    ResultsDir,
    backend_of,
    settings_of,
)
from pfl_node.settings import Settings
from pfl_node.settings.schema import dotted

Flat = dict[str, Any]  # dotted keys
COMMAND = "Repeat it"  # the name of the first fact


@dataclass(frozen=True)
class Result:
    folder: ResultsDir
    results: Results

    @property
    def experiment(self) -> Experiment:
        return self.results.experiment

    @cached_property
    def facts(self) -> Mapping[str, Any]:
        return _json(self.folder.path / ENVIRONMENT)

    @cached_property
    def command(self) -> str:
        return self.command_for(str(self.folder.path / SPEC))

    def command_for(self, path: str, omit: Sequence[str] = ()) -> str:
        """`path` is where the spec is, unless it is shipped. Settings to `omit` belong to this machine."""
        experiment = self.experiment
        name = experiment.name
        if name not in spec.shipped() or spec.read(name)[1] != experiment.text:
            name = path
        size = ["--scale", experiment.scale, "--seeds", str(len(experiment.seeds))]
        size += [word for text in experiment.sweeps for word in ("--sweep", text)]
        size += ["--backend", experiment.backend] if experiment.backend != "sim" else []
        overrides = [f"{key}={as_text(value)}" for key, value in self._overrides().items() if key not in omit]
        sets = [word for text in overrides for word in ("--set", text)]
        return shlex.join(["pfl-node", "lab", "run", name, *size, *sets])

    def _overrides(self) -> Flat:
        """The settings that differ from the spec, and that all cells that were begun have in common."""
        common: Flat | None = None
        experiment = self.experiment
        again = _load(self.folder.path, self.facts)
        planned = {cell.folder: cell for cell in again.cells}
        begun = [cell for cell in experiment.cells if (self.folder.place(cell) / SETTINGS).exists()]
        for cell in begun or experiment.cells:
            plan, actual = dotted(settings_of(planned[cell.folder])["settings"]), self.settings(cell)
            ours = {key for key in actual if key in plan or key.startswith(("task.", "policy."))}
            own = {key: actual[key] for key in actual if key in ours and plan.get(key) != actual[key]}
            common = own if common is None else {k: v for k, v in common.items() if own.get(k) == v}
        return common or {}

    def settings(self, cell: Cell) -> Flat:
        path = self.folder.place(cell) / SETTINGS
        return dotted(_json(path, "settings")["settings"]) if path.exists() else flat(cell.settings)

    def sources(self, cell: Cell) -> Flat:
        """The first digits of the digests of the user's files with which it was run."""
        path = self.folder.place(cell) / SETTINGS
        digests = _json(path).get("sources", {}) if path.exists() else {}
        return {file: digest[:12] for file, digest in digests.items()}

    def made_with(self, cell: Cell) -> list[Mapping[str, Any]]:
        """Versions, commit and machine of a cell; several if it was resumed elsewhere."""
        path = self.folder.place(cell) / MADE_WITH
        return list(_json(path, "environments")["environments"]) if path.exists() else [self.facts]

    @cached_property
    def environments(self) -> list[Mapping[str, Any]]:
        return [made for cell in self.results.found for made in self.made_with(cell)] or [self.facts]

    def seconds(self, what: str) -> float:
        return sum(found.summary.get(f"{what}_seconds") or 0.0 for found in self.results.found.values())


def reopen(path: Path) -> Result:
    for name in (SPEC, ENVIRONMENT):
        if not (path / name).is_file():
            raise ConfigError(f"{path} is not a results directory of `pfl-node lab run`: it has no {name}")
    facts = _json(path / ENVIRONMENT)
    if (
        not isinstance(facts.get("seeds"), list)
        or facts.get("scale") not in get_args(Scale)
        or "name" not in facts
    ):
        raise ConfigError(
            f"{path} is not a results directory of `pfl-node lab run`: its {ENVIRONMENT} has other contents"
        )
    try:
        planned = _load(path, facts).on(backend_of(facts))
    except ConfigError as error:
        raise ConfigError(f"cannot read {path / SPEC}: {error}") from error
    folder = Done(path)
    experiment = replace(planned, cells=tuple(_as_run(folder, cell) for cell in planned.cells))
    return Result(folder, results.read(experiment, folder))


class Done(ResultsDir):
    """A cell with a summary is done, even if settings have been added since."""

    def is_done(self, cell: Cell) -> bool:
        return (self.place(cell) / SUMMARY).exists()


def _as_run(folder: ResultsDir, cell: Cell) -> Cell:
    """The cell with its recorded settings, unless they are too old to be read."""
    path = folder.place(cell) / SETTINGS
    if not path.exists():
        return cell
    row = _json(path, "nodes", "settings")
    as_run = replace(cell, nodes=row["nodes"], backend=backend_of(row))
    try:
        return replace(as_run, settings=Settings.model_validate(row["settings"]))
    except ValidationError:
        return as_run


def _load(path: Path, facts: Mapping[str, Any]) -> Experiment:
    seeds, sweeps = len(facts["seeds"]), facts.get("sweeps", ())  # old files have no sweeps
    return replace(spec.load(str(path / SPEC), facts["scale"], seeds=seeds, sweeps=sweeps), name=facts["name"])


def _json(path: Path, *keys: str) -> dict[str, Any]:
    """An object with these keys."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    if not isinstance(found, dict) or not found.keys() >= set(keys):
        raise ConfigError(f"{path} is damaged: delete {path.parent} and run the experiment again")
    return found


# -- settings as dotted keys -----------------------------------------------------------------------------------


def flat(settings: Settings) -> Flat:
    return dotted(settings.model_dump(mode="json"))


def not_default(settings: Flat) -> Flat:
    """The settings that differ from the defaults, always with policy and task, without the seed."""
    usual = {k: v for k, v in flat(Settings()).items() if k not in ("policy.name", "task.name")}
    return {k: v for k, v in settings.items() if k != "seed" and (k not in usual or usual[k] != v)}


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


# -- how it was produced ---------------------------------------------------------------------------------------


def facts(record: Result) -> Iterator[tuple[str, str]]:
    """Command, scale, seeds, versions, machine, time."""
    experiment, made = record.experiment, record.environments
    done, planned = len(record.results.found), len(experiment.cells)
    sizes = dict.fromkeys(f"{c.nodes} nodes, {c.settings.rounds} rounds" for c in experiment.cells)
    yield COMMAND, record.command
    yield "Scale", f"{experiment.scale}: {', '.join(sizes)}"
    yield "Backend", phrases.backend(record.results)
    yield "Seeds", ", ".join(map(str, experiment.seeds))
    yield "Runs", f"{done} of {planned} done"
    if begun := sorted(when for one in made if (when := one.get("begun"))):
        yield "Begun", " to ".join(dict.fromkeys(map(_when, (begun[0], begun[-1]))))
    yield (
        "pfl-node",
        _each(f"{one.get('pfl-node', 'unknown')}, commit {_commit(one.get('commit'))}" for one in made),
    )
    yield "Versions", _each(map(_versions, made))
    yield "Machine", _each(map(_machine, made))
    wall, spent = (phrases.duration(record.seconds(what)) for what in ("wall", "cpu"))
    yield "Time", f"{wall} of wall time, {spent} of CPU time, sum of all runs"


def _each(texts: Iterable[str]) -> str:
    counted = Counter(texts)
    if len(counted) == 1:
        return next(iter(counted))
    return "; ".join(f"{text} ({phrases.plural(n, 'run')})" for text, n in counted.items())


def _when(text: str) -> str:
    """A time such as 2026-01-31T12:34:56+00:00, to the minute."""
    return f"{text[:10]} {text[11:16]} UTC"


def _commit(commit: str | None) -> str:
    if not commit:
        return "unknown"
    return f"{commit[:-1]} with uncommitted changes" if commit.endswith("+") else commit


def _versions(made: Mapping[str, Any]) -> str:
    found = {"Python": made.get("python"), **made.get("packages", {})}
    return ", ".join(f"{name} {version}" for name, version in found.items() if version)


def _machine(made: Mapping[str, Any]) -> str:
    machine = made.get("machine", {})
    return f"{machine.get('cpu') or 'unknown CPU'}, {machine.get('cores', '?')} cores, {machine.get('system', '')}"
