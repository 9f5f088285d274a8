"""A record: a summary of a result in a few kilobytes, to be committed. The figures of each seed, the paper's, the
claims, how it was made, how its size differs from the paper's, and the digests of its journals."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from pfl_node.errors import ConfigError
from pfl_node.lab import spec
from pfl_node.lab.experiment import Cell, Claim, Experiment
from pfl_node.lab.report.phrases import file_name
from pfl_node.lab.report.result import Result, as_text, flat
from pfl_node.lab.results import ClaimVerdict, Estimate
from pfl_node.lab.results_dir import JOURNAL, SPEC
from pfl_node.lab.sweeps import keys_of
from pfl_node.learning.tasks import TASKS
from pfl_node.settings import Settings
from pfl_node.store.atomic import make_directory, write_atomic

COMPARED = ("nodes", "rounds", "task.", "train.", "policy.", "attack.", "privacy.", "aggregate.")
DATASETS = [name for name in TASKS if name != "digits"]  # tasks that need a data root
LOCAL = ("task.root", "task.download")  # settings of the machine, not of the experiment


@dataclass(frozen=True)
class RecordedFigure:
    values: Mapping[int, float]  # values by seed, in the unit of the measure
    paper: float | None = None


@dataclass(frozen=True)
class RecordedRow:
    run: str
    point: str
    nodes: int
    rounds: int | None
    differences: Sequence[str]  # differences from the paper's scale in the spec
    figures: Mapping[str, RecordedFigure]


@dataclass(frozen=True)
class RecordedClaim:
    claim: Claim
    point: str
    differences: Mapping[int, float]  # differences by seed
    at_least: bool = False
    at_most: bool = False

    @cached_property
    def verdict(self) -> ClaimVerdict:
        estimate = Estimate.of(self.differences.values())
        return ClaimVerdict(self.claim, self.point, estimate, self.at_least, self.at_most)


@dataclass(frozen=True)
class ResultRecord:
    name: str  # name of the file
    experiment: str  # name of the spec
    title: str
    paper: str
    scale: str
    backend: str
    seeds: Sequence[int]
    command: str
    commits: Sequence[str]
    versions: Mapping[str, str]
    metrics: Sequence[str]
    rows: Sequence[RecordedRow]
    claims: Sequence[RecordedClaim]
    journals: Mapping[str, str] = field(default_factory=dict)  # SHA-256 by folder; empty: journals were not kept
    missing: Sequence[str] = ()  # folders of runs that were not finished
    notes: Sequence[str] = ()
    cpu_seconds: float = 0.0

    @property
    def digest(self) -> str | None:
        """The digest of all journals."""
        lines = "".join(f"{folder} {digest}\n" for folder, digest in sorted(self.journals.items()))
        return sha256(lines.encode()).hexdigest() if lines else None


RECORD = TypeAdapter(ResultRecord)


def seeds_of(record: ResultRecord) -> list[int]:
    """The seeds with at least one finished run."""
    return sorted({seed for row in record.rows for figure in row.figures.values() for seed in figure.values})


def record_of(
    result: Result, name: str = "", notes: Sequence[str] = (), specs: Path | None = None
) -> ResultRecord:
    """A record with the claims, figures and columns of the shipped spec, which may have been extended since the
    run. `specs`: where specs that are not shipped may be."""
    result = Result(result.folder, replace(result.results, experiment=_with_spec(result.experiment)))
    experiment, results = result.experiment, result.results
    made = result.environments
    return ResultRecord(
        name=name or _default_name(experiment),
        experiment=experiment.name,
        title=experiment.title,
        paper=experiment.paper,
        scale=experiment.scale,
        backend=experiment.backend,
        seeds=list(experiment.seeds),
        command=portable(result, specs),
        commits=sorted({str(one.get("commit") or "unknown") for one in made}),
        versions=_versions(made[0]),
        metrics=list(experiment.metrics),
        rows=list(_rows(result)),
        claims=[RecordedClaim(v.claim, v.point, _by_seed(v), v.at_least, v.at_most) for v in results.verdicts()],
        journals={cell.folder: digest(result.folder.place(cell) / JOURNAL) for cell in results.found},
        missing=[cell.folder for cell in experiment.cells if cell not in results.found],
        notes=list(notes),
        cpu_seconds=result.seconds("cpu"),
    )


def _versions(made: Mapping[str, Any]) -> dict[str, str]:
    """Everything but the commit that a journal depends on. Before the lab chose the kernels, the processor did."""
    kernels = " ".join(made.get("kernels", {}).values())
    processor = None if kernels else made.get("machine", {}).get("cpu")
    found = {"python": made.get("python"), "processor": processor, "kernels": kernels, **made.get("packages", {})}
    return {name: str(version) for name, version in found.items() if version}


def _default_name(experiment: Experiment) -> str:
    """Like the default directory of the result: a sweep, or a swarm, has a record of its own."""
    backend = [experiment.backend] if experiment.backend != "sim" else []
    return file_name(experiment.name, experiment.scale, *keys_of(experiment.sweeps), *backend)


def _with_spec(experiment: Experiment) -> Experiment:
    if experiment.name not in spec.shipped():
        return experiment
    now = spec.load(experiment.name, experiment.scale, seeds=1, sweeps=experiment.sweeps)
    if (now.runs, now.points) != (experiment.runs, experiment.points):
        return experiment
    return replace(experiment, claims=now.claims, figures=now.figures, metrics=now.metrics)


def portable(result: Result, specs: Path | None = None) -> str:
    """The command, without paths of this machine. A shipped spec may have been extended since the run; one with
    another title is a different experiment, whose file may be in the directory `specs`."""
    experiment = result.experiment
    tasks = {cell.settings.task.name for cell in experiment.cells}
    data = " --data-root DATA" if tasks & set(DATASETS) else ""
    file = f"{experiment.name}.toml"
    if experiment.name in spec.shipped() and spec.load(experiment.name).title == experiment.title:
        file = experiment.name
    elif specs and (specs / file).is_file():
        file = str(specs / file)
    return result.command_for(file, omit=LOCAL) + data


def digest(journal: Path) -> str:
    return sha256(journal.read_bytes()).hexdigest()


def _by_seed(verdict: ClaimVerdict) -> dict[int, float]:
    return dict(zip(verdict.seeds, verdict.estimate.values if verdict.estimate else (), strict=True))


def _rows(result: Result) -> Iterator[RecordedRow]:
    experiment, results = result.experiment, result.results
    paper = spec.load(str(result.folder.path / SPEC), "paper", seeds=1, sweeps=experiment.sweeps)
    planned = {(cell.run, cell.point): cell for cell in paper.cells}
    cells = {(cell.run, cell.point): cell for cell in reversed(experiment.cells)}
    for (run, point), cell in reversed(cells.items()):
        figures = {
            metric: RecordedFigure(values, results.figure(run, point, metric))
            for metric in experiment.metrics
            if (values := results.by_seed(run, point, metric)) or results.figure(run, point, metric) is not None
        }
        other = planned.get((run, point))
        differs = list(_differences(result, cell, other)) if other else ["not in the spec at the paper's scale"]
        if experiment.target != paper.target:
            differs.append(f"target {_percent(experiment.target)} (spec: {_percent(paper.target)})")
        yield RecordedRow(run, point, cell.nodes, cell.settings.rounds, differs, figures)


def _percent(target: float | None) -> str:
    return f"{100 * target:g} %" if target else "none"


def _differences(result: Result, cell: Cell, planned: Cell) -> Iterator[str]:
    ours, theirs = result.settings(cell), flat(planned.settings)
    for what, mine, paper in (("nodes", cell.nodes, planned.nodes), ("rounds", ours["rounds"], theirs["rounds"])):
        if mine != paper:
            yield f"{mine} of {paper} {what}"
    usual = flat(Settings())  # defaults, for runs that are older than a setting
    for key in sorted(ours.keys() | theirs.keys()):
        compared = key.startswith(COMPARED) and key not in (*LOCAL, "rounds", "task.name", "policy.name")
        mine, paper = (found.get(key, usual.get(key)) for found in (ours, theirs))
        if compared and mine != paper:
            yield f"{key} = {_value(mine)} (spec: {_value(paper)})"


def _value(value: Any) -> str:
    return "not set" if value is None else as_text(value)


# -- files -----------------------------------------------------------------------------------------------------


def save(record: ResultRecord, folder: Path) -> Path:
    make_directory(folder)
    path = folder / f"{record.name}.json"
    text = json.dumps(RECORD.dump_python(record, mode="json"), indent=1, ensure_ascii=False)
    write_atomic(path, text.encode() + b"\n")
    return path


def load(path: Path) -> ResultRecord:
    try:
        return RECORD.validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{path} is not a record: {place}{': ' if place else ''}{first['msg']}") from None


def load_all(folder: Path) -> list[ResultRecord]:
    if not folder.is_dir():
        raise ConfigError(f"there is no directory {folder}: make records with `pfl-node lab record DIR`")
    if not (found := sorted(folder.glob("*.json"))):
        raise ConfigError(f"{folder} has no records: make them with `pfl-node lab record DIR`")
    return [load(path) for path in found]


# -- a rerun ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JournalCheck:
    folder: str
    outcome: str  # same, different or missing


def verify(record: ResultRecord, result: Result) -> list[JournalCheck]:
    """Compare the journals of a rerun with those of the record."""
    if not record.journals:
        raise ConfigError(f"{record.name} has no digests: its journals were not kept")
    found = {cell.folder: cell for cell in result.results.found}
    checks = []
    for folder, known in sorted(record.journals.items()):
        if folder not in found:
            checks.append(JournalCheck(folder, "missing"))
        else:
            same = digest(result.folder.place(found[folder]) / JOURNAL) == known
            checks.append(JournalCheck(folder, "same" if same else "different"))
    return checks


def other_versions(record: ResultRecord, result: Result) -> list[str]:
    """What may explain that journals differ. Old records name no kernels, and some of them no processor."""
    known, now = record.versions, _versions(result.environments[0])
    return [
        f"{name} {known.get(name, 'not named')} in the record, {now.get(name, 'not named')} here"
        for name in sorted(known.keys() | now)
        if known.get(name) != now.get(name)
    ]
