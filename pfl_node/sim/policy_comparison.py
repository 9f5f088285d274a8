"""Several policies, or several seeds, on the same data: who takes part with which knobs, the runs, a row for each.
How a row is shown is `table.py`'s business."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from pfl_node.errors import ConfigError, nearest
from pfl_node.policies import configure, load_policy
from pfl_node.policies.base import Policy
from pfl_node.settings import PolicySettings, Settings
from pfl_node.sim.process_pool import Said, cores, run_all
from pfl_node.sim.scale_knobs import Fit, fit
from pfl_node.sim.sim_worker import WorkerOrder

Knobs = Mapping[str, Any]
Summary = dict[str, Any]  # a run's, as summary.json has it


@dataclass(frozen=True, slots=True)
class Entrant:
    """A policy that is to be compared, and the knobs that are not its own defaults."""

    name: str
    title: str  # what tells it from the others
    given: Knobs = field(default_factory=dict)  # by the user
    fit: Fit = field(default_factory=Fit)  # to the size of the run
    refusal: str | None = None  # why it cannot even begin

    @property
    def knobs(self) -> dict[str, Any]:
        return {**self.fit.knobs, **self.given}


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over the seeds."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread | None:
        known = [v for v in values if v is not None]
        return cls(fmean(known), min(known), max(known)) if known else None


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """What came out for one of them: its runs in the order of the seeds, or why there are none."""

    entrant: Entrant
    runs: tuple[Summary, ...] = ()
    failure: str | None = None

    def spread(self, *path: str) -> Spread | None:
        """Of a figure of summary.json; None: no run has it."""
        return Spread.of(_dig(run, path) for run in self.runs)

    @property
    def accuracy(self) -> Spread | None:
        return self.spread("accuracy")

    def cluster(self, cluster: str) -> Spread | None:
        return self.spread("accuracy_by_cluster", cluster)


@dataclass(frozen=True, slots=True)
class PolicyComparison:
    """All rows: the most accurate first, those that did not run last."""

    settings: Settings
    nodes: int
    seeds: range
    rows: tuple[PolicyRow, ...]

    @property
    def ran(self) -> list[PolicyRow]:
        return [row for row in self.rows if row.failure is None]

    @property
    def failed(self) -> list[PolicyRow]:
        return [row for row in self.rows if row.failure is not None]

    @property
    def clusters(self) -> list[str]:
        return sorted({c for row in self.ran for run in row.runs for c in run["accuracy_by_cluster"]}, key=int)

    def row(self, title: str) -> PolicyRow:
        return next(row for row in self.rows if row.entrant.title == title)


# -- who takes part --------------------------------------------------------------------------------------------


def enter(
    names: Sequence[str], shared: Knobs, own: Mapping[str, Knobs], *, nodes: int, rounds: int, fitted: bool = True
) -> list[Entrant]:
    """`shared` knobs go to every policy that has them, `own` ones to that policy alone. A name or a knob that does
    not exist is a mistake. A shared value that only some can use is not: the others say why they do not run."""
    classes = {name: load_policy(name) for name in names}
    check_own(own, names)
    titles, entrants = _titles(names), []
    for name, cls in classes.items():
        given = {k: v for k, v in shared.items() if k in cls.Config.model_fields} | dict(own.get(name, {}))
        size = fit(cls, nodes, rounds) if fitted else Fit()
        entrants.append(Entrant(name, titles[name], given, size, _refusal(cls, {**size.knobs, **given})))
    for knob in shared:
        _check_shared(knob, entrants)
    for entrant in entrants:
        if entrant.refusal and own.get(entrant.name):
            raise ConfigError(f"{entrant.name}: {entrant.refusal}")
    return entrants


def check_own(own: Mapping[str, Knobs], names: Sequence[str]) -> None:
    """Knobs are for policies that run."""
    for name, knobs in own.items():
        if name not in names:
            raise ConfigError(f"policy.{name}.{next(iter(knobs))}: no {name!r} runs here; {nearest(name, names)}")


def _titles(names: Sequence[str]) -> dict[str, str]:
    """A policy of the user's own goes without its folder, unless another one has the same name."""
    short = {name: name.rpartition("/")[2] for name in names}
    shown = list(short.values())
    return {name: title if shown.count(title) == 1 else name for name, title in short.items()}


def _refusal(cls: type[Policy], knobs: Knobs) -> str | None:
    try:
        configure(cls, knobs)
    except ConfigError as error:
        return str(error)
    return None


def _check_shared(knob: str, entrants: Sequence[Entrant]) -> None:
    holders = [e for e in entrants if knob in e.given]
    if not holders:
        known = {k for e in entrants for k in load_policy(e.name).Config.model_fields}
        hint = nearest(knob, known) if known else "they have no knobs"
        raise ConfigError(f"policy.{knob} is not a knob of {_listed([e.title for e in entrants])}: {hint}")
    if all(e.refusal for e in holders):
        raise ConfigError(holders[0].refusal or "")


def _listed(names: Sequence[str], most: int = 5) -> str:
    return ", ".join(names) if len(names) <= most else f"any of the {len(names)} policies"


# -- the runs --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Heard:
    """What a run says while it is under way or when it ends."""

    title: str
    seed: int
    said: Said


def compare(
    settings: Settings,
    entrants: Sequence[Entrant],
    *,
    nodes: int,
    seeds: int = 1,
    faults: Sequence[str] = (),
    out: Path | None = None,
    workers: int | None = None,
    watch: Callable[[Heard], None] | None = None,
) -> PolicyComparison:
    """Runs each with the seeds from the settings' one on. Whatever the number of workers, the figures are the same
    but for the CPU seconds."""
    able = [e for e in entrants if not e.refusal]
    over = range(settings.seed, settings.seed + seeds)
    folders = _folders([e.title for e in able])
    plan = [(entrant, seed) for entrant in able for seed in over]
    orders = [
        WorkerOrder(
            _settings(settings, entrant, seed),
            nodes,
            tuple(faults),
            out / folders[entrant.title] / str(seed) if out else None,
        )
        for entrant, seed in plan
    ]

    def heard(number: int, said: Said) -> None:
        if watch:
            entrant, seed = plan[number]
            watch(Heard(entrant.title, seed, said))

    ends = run_all(orders, workers or cores(), heard)
    rows = [PolicyRow(e, failure=e.refusal) for e in entrants if e.refusal]
    rows += [_row(e, ends[i * seeds : (i + 1) * seeds], over) for i, e in enumerate(able)]
    return PolicyComparison(settings, nodes, over, tuple(sorted(rows, key=_best_first)))


def _settings(settings: Settings, entrant: Entrant, seed: int) -> Settings:
    """Models are measured at the end only, unless the user says how often: what a policy costs is not that."""
    rounds = entrant.fit.rounds or settings.rounds
    measured = settings.eval
    if "every" not in measured.model_fields_set:
        measured = measured.model_copy(update={"every": rounds or 1})
    policy = PolicySettings.model_validate({"name": entrant.name, **entrant.knobs})
    return settings.model_copy(update={"policy": policy, "seed": seed, "rounds": rounds, "eval": measured})


def _row(entrant: Entrant, ends: Sequence[Said], seeds: Sequence[int]) -> PolicyRow:
    whys = [(seed, said["why"]) for seed, said in zip(seeds, ends, strict=True) if said["event"] == "failed"]
    if not whys:
        return PolicyRow(entrant, tuple(said["summary"] for said in ends))
    seed, why = whys[0]
    return PolicyRow(entrant, failure=why if len(whys) == len(ends) else f"{why} (seed {seed})")


def _best_first(row: PolicyRow) -> tuple[bool, float]:
    return row.failure is not None, -(row.accuracy.mean if row.accuracy else 0.0)


def _folders(titles: Sequence[str]) -> dict[str, str]:
    """A folder's name for each, and no two the same."""
    found: dict[str, str] = {}
    for title in titles:
        plain = name = re.sub(r"[^\w.-]+", "-", title)
        number = 2
        while name in found.values():
            name, number = f"{plain}-{number}", number + 1
        found[title] = name
    return found


def _dig(run: Summary, path: Sequence[str]) -> float | None:
    value: Any = run
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return None if value is None else float(value)
