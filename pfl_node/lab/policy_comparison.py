"""Several policies or seeds on the same data (`sim --policy a,b --seeds 3`): an experiment without a spec file."""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pfl_node.errors import ConfigError, nearest
from pfl_node.lab.experiment import Cell, Experiment
from pfl_node.lab.measures import CellResult, summary_value
from pfl_node.lab.results import Estimate, Results
from pfl_node.lab.runner import OnCell
from pfl_node.policies import POLICIES, configure, load_policy
from pfl_node.policies.base import Policy
from pfl_node.settings import PolicySettings, Settings
from pfl_node.sim import sim_worker
from pfl_node.sim.process_executor import ProcessExecutor
from pfl_node.sim.run_jobs import Message, run_all
from pfl_node.sim.sim_worker import RunOrder
from pfl_node.sim.worker_process import cores
from pfl_node.types import Headline

Knobs = Mapping[str, Any]

# Below this number of nodes, the numbers of rated and merged peers shrink in proportion. With 20 nodes, greedy and
# pens_pull have the values of the thesis for its smallest swarm: the best 1 of 5.
FULL = 80
IN_PROPORTION = ("n_peers", "m_selected", "m_sample")
# At most the number of nodes or rounds divided by this, at least 1.
NODES_PER = {"n_sampled": 2, "m": 8}
ROUNDS_PER = {"T": 2, "selection_rounds": 2, "warmup": 4}  # half of the rounds for the search
CORE_ROUNDS = 400  # with fewer, one batch a round does not train deprl's core: it gets the steps of the settings
CLIENTS = 10  # nodes that train in a round of fedavg: C = 0.1 of the papers' 100 nodes
ONE_SHOT = "feded"  # a single round is the whole algorithm


@dataclass(frozen=True, slots=True)
class Fit:
    """How a policy differs from its defaults and from the run's number of rounds."""

    knobs: dict[str, Any] = field(default_factory=dict)
    rounds: int | None = None  # None: those of the run


@dataclass(frozen=True, slots=True)
class Entrant:
    name: str
    title: str  # unique among the entrants
    given: Knobs = field(default_factory=dict)  # knobs set by the user
    fit: Fit = field(default_factory=Fit)  # adapted to the size of the run
    refusal: str | None = None  # why it cannot run

    @property
    def knobs(self) -> dict[str, Any]:
        return {**self.fit.knobs, **self.given}


@dataclass(frozen=True)
class PolicyComparison:
    """`plan` it, then `run` it."""

    settings: Settings  # settings shared by all entrants
    entrants: tuple[Entrant, ...]
    nodes: int
    seeds: tuple[int, ...]
    cells: tuple[Cell, ...]  # excludes entrants that cannot run
    last: Mapping[Cell, Message] = field(default_factory=dict)  # the message that ended each run

    @classmethod
    def plan(
        cls, settings: Settings, entrants: Sequence[Entrant], *, nodes: int, seeds: int = 1
    ) -> PolicyComparison:
        """Plan a comparison with consecutive seeds, starting at that of the settings."""
        numbers = tuple(range(settings.seed, settings.seed + seeds))
        able = [entrant for entrant in entrants if not entrant.refusal]
        folders = _folders([entrant.title for entrant in able])
        cells = tuple(
            Cell(e.title, "", seed, nodes, _settings(settings, e, seed), f"{folders[e.title]}/{seed}")
            for e in able
            for seed in numbers
        )
        return cls(settings, tuple(entrants), nodes, numbers, cells)

    def run(
        self,
        *,
        faults: Sequence[str] = (),
        out: Path | None = None,
        workers: int | None = None,
        on_cell: OnCell = lambda *_: None,
    ) -> PolicyComparison:
        """The number of workers changes only the CPU seconds."""
        orders = [
            RunOrder(c.settings, c.nodes, tuple(faults), out / c.folder if out else None) for c in self.cells
        ]
        processes = max(1, min(workers or cores(), len(orders)))
        with tempfile.TemporaryDirectory() as scratch, ProcessExecutor(processes) as executor:
            last = run_all(
                sim_worker.run, orders, executor, Path(scratch), lambda i, message: on_cell(self.cells[i], message)
            )
        return replace(self, last=dict(zip(self.cells, last, strict=True)))

    @property
    def experiment(self) -> Experiment:
        return Experiment("comparison", "", "", "", "quick", self.seeds, self.cells, ("accuracy",))

    @cached_property
    def results(self) -> Results:
        done = {cell: CellResult(m["summary"]) for cell, m in self.last.items() if m["event"] == "done"}
        return Results(self.experiment, done)

    @property
    def ran(self) -> list[Entrant]:
        """The entrants that ran, best first, by the headline of the task."""
        way = 1.0 if self.headline.higher else -1.0
        means = {
            e.title: way * found.mean for e in self.entrants if (found := self.estimate(e, *self.headline_path))
        }
        ran = [entrant for entrant in self.entrants if entrant.title not in self.failures]
        return sorted(ran, key=lambda entrant: -means.get(entrant.title, 0.0 if way > 0 else -math.inf))

    @property
    def headline(self) -> Headline:
        return self.results.headline

    @property
    def headline_path(self) -> tuple[str, ...]:
        """The path of the headline in summary.json."""
        name = self.headline.name
        return (name,) if name in ("accuracy", "loss") else ("metrics", name)

    @property
    def metrics(self) -> list[str]:
        """The names of the task's own metrics."""
        found = (name for found in self.results.found.values() for name in found.summary.get("metrics", {}))
        return list(dict.fromkeys(found))

    @cached_property
    def failures(self) -> dict[str, str]:
        """Reasons of failures, by title. An entrant that fails with one seed has failed."""
        found = {entrant.title: entrant.refusal for entrant in self.entrants if entrant.refusal}
        failed = [(cell, m["why"]) for cell, m in self.last.items() if m["event"] == "failed"]
        for cell, why in failed:
            alone = sum(other.run == cell.run for other, _ in failed) < len(self.seeds)
            found.setdefault(cell.run, f"{why} (seed {cell.seed})" if alone else why)
        return found

    @property
    def clusters(self) -> list[str]:
        return sorted(
            {
                c
                for found in self.results.found.values()
                for c in found.summary.get("headline_by_cluster") or found.summary["accuracy_by_cluster"]
            },
            key=int,
        )

    def entrant(self, title: str) -> Entrant:
        return next(entrant for entrant in self.entrants if entrant.title == title)

    def runs(self, entrant: Entrant) -> list[Mapping[str, Any]]:
        return [found.summary for found in self.results.founds(entrant.title, "")]

    def estimate(self, entrant: Entrant, *path: str) -> Estimate | None:
        """A figure of summary.json over the seeds; None: no run has it."""
        return Estimate.of(map(summary_value(*path), self.results.founds(entrant.title, "")))


def compare(settings: Settings, entrants: Sequence[Entrant], *, nodes: int, seeds: int = 1) -> PolicyComparison:
    return PolicyComparison.plan(settings, entrants, nodes=nodes, seeds=seeds).run()


def _settings(settings: Settings, entrant: Entrant, seed: int) -> Settings:
    """Unless the user sets `eval.every`, models are evaluated after the last round only: it costs CPU time."""
    rounds = entrant.fit.rounds or settings.rounds
    evaluation = settings.eval
    if "every" not in evaluation.model_fields_set:
        evaluation = evaluation.model_copy(update={"every": rounds or 1})
    policy = PolicySettings.model_validate({"name": entrant.name, **entrant.knobs})
    return settings.model_copy(update={"policy": policy, "seed": seed, "rounds": rounds, "eval": evaluation})


def _folders(titles: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for title in titles:
        plain = name = re.sub(r"[^\w.-]+", "-", title)
        number = 2
        while name in found.values():
            name, number = f"{plain}-{number}", number + 1
        found[title] = name
    return found


# -- the entrants ----------------------------------------------------------------------------------------------


def enter(
    names: Sequence[str], shared: Knobs, own: Mapping[str, Knobs], *, nodes: int, rounds: int, fitted: bool = True
) -> list[Entrant]:
    """`shared` knobs go to every policy that has them, `own` knobs to one policy. An unknown name or knob is an
    error. If only some policies accept a shared value, the others get a `refusal`."""
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
    """Raise unless every policy that has knobs of its own is one of `names`."""
    for name, knobs in own.items():
        if name not in names:
            raise ConfigError(f"policy.{name}.{next(iter(knobs))}: {name!r} is not run; {nearest(name, names)}")


def _titles(names: Sequence[str]) -> dict[str, str]:
    short = {name: name.rpartition("/")[2] for name in names}
    titles = list(short.values())
    return {name: title if titles.count(title) == 1 else name for name, title in short.items()}


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


# -- knobs -----------------------------------------------------------------------------------------------------


def fit(cls: type[Policy], nodes: int, rounds: int) -> Fit:
    """Scale the knobs of a policy to the size of a simulation. The papers use 100 nodes and 200 to 1,200 rounds:
    in a swarm of 20 no node has 20 peers, and a search of 200 selections does not end in 40 rounds. For a built-in
    policy or a subclass of one; knobs that a user's class adds keep their defaults."""
    kin = [policy for policy in POLICIES.values() if issubclass(cls, policy)]
    known = {name for policy in kin for name in policy.Config.model_fields}
    defaults = {name: cls.Config.model_fields[name].default for name in known & cls.Config.model_fields.keys()}
    most = {name: round(defaults[name] * nodes / FULL) for name in IN_PROPORTION if name in defaults}
    most |= {name: nodes // part for name, part in NODES_PER.items()}
    most |= {name: rounds // part for name, part in ROUNDS_PER.items()}
    knobs: dict[str, Any] = {
        name: max(1, value) for name, value in most.items() if name in defaults and max(1, value) < defaults[name]
    }
    if "core_steps" in defaults and rounds < CORE_ROUNDS:
        knobs["core_steps"] = 0
    if "C" in defaults and (share := min(1.0, CLIENTS / nodes)) > defaults["C"]:
        knobs["C"] = share
    return Fit(knobs, 1 if POLICIES[ONE_SHOT] in kin and rounds > 1 else None)
