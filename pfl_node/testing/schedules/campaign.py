"""Many schedules, over worker processes: what they say in sum, and which of them break a rule."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pfl_node.errors import PflError
from pfl_node.settings.load import load_settings
from pfl_node.sim.process_pool import Said, run_all
from pfl_node.testing.schedules.generator import draw
from pfl_node.testing.schedules.trial import run

MODULE = "pfl_node.testing.schedules.campaign_worker"
BATCH = 25  # schedules that a worker is told at once
SHOWN = 3  # findings of a schedule that are told


@dataclass(frozen=True, slots=True)
class Asked:
    """Some schedules."""

    first: int
    number: int
    policies: tuple[str, ...] = ()  # none: all there are
    sets: tuple[str, ...] = ()

    def dump(self) -> str:
        return json.dumps([self.first, self.number, self.policies, self.sets])

    @classmethod
    def load(cls, line: str) -> Asked:
        first, number, policies, sets = json.loads(line)
        return cls(first, number, tuple(policies), tuple(sets))

    @property
    def seeds(self) -> range:
        return range(self.first, self.first + self.number)


@dataclass
class Told:
    """What came out of some schedules; plain values only, as it travels as JSON."""

    schedules: int = 0
    checked: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    policies: Counter[str] = field(default_factory=Counter)
    broken: list[dict[str, Any]] = field(default_factory=list)  # seed, policy, findings
    digests: list[str] = field(default_factory=list)  # of the journals, in the order of the seeds
    seconds: float = 0.0  # virtual

    def add(self, other: Mapping[str, Any]) -> None:
        self.schedules += other["schedules"]
        for name in ("checked", "counts", "policies"):
            getattr(self, name).update(other[name])
        self.broken += other["broken"]
        self.digests += other["digests"]
        self.seconds += other["seconds"]

    @property
    def digest(self) -> str:
        """One for all journals: the same on every machine, in how many processes ever."""
        return hashlib.sha256("".join(self.digests).encode()).hexdigest()[:16]


def knobs_of(sets: Sequence[str]) -> dict[str, Any]:
    """Those that the user sets, which are not drawn."""
    return load_settings(sets=[text for text in sets if text.strip().startswith("policy.")]).policy.options


def try_some(asked: Asked) -> Told:
    told, knobs = Told(), knobs_of(asked.sets)
    for seed in asked.seeds:
        trial = run(draw(seed, asked.policies, knobs), asked.sets)
        told.schedules += 1
        told.checked.update(trial.checked)
        told.counts.update(trial.counts)
        told.policies[trial.schedule.policy] += 1
        told.digests.append(trial.digest)
        told.seconds += trial.seconds
        if trial.broken:
            findings = [str(finding) for finding in trial.broken[:SHOWN]]
            told.broken.append({"seed": seed, "policy": trial.schedule.policy, "findings": findings})
    return told


def try_all(asked: Asked, workers: int, watch: Callable[[int], None] | None = None) -> Told:
    """`watch` hears how many are done. With one worker everything happens in this process."""
    batches = [
        Asked(first, min(BATCH, asked.seeds.stop - first), asked.policies, asked.sets)
        for first in range(asked.first, asked.seeds.stop, BATCH)
    ]
    told, done = Told(), 0
    if workers == 1 or len(batches) == 1:
        for batch in batches:
            told.add(vars(try_some(batch)))
            if watch:
                watch(told.schedules)
        return told

    def heard(number: int, said: Said) -> None:
        nonlocal done
        if said["event"] == "done":
            done += batches[number].number
            if watch:
                watch(done)

    for said in run_all(batches, workers, heard, MODULE):
        if said["event"] != "done":
            raise PflError(f"a worker did not come through: {said['why']}")
        told.add(said["summary"])
    return told
