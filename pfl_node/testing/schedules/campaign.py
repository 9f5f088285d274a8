"""Many fault schedules, spread over worker processes: their totals, and those that broke a rule, reduced to the
faults that matter."""

from __future__ import annotations

import hashlib
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pfl_node.errors import PflError
from pfl_node.settings.load import load_settings
from pfl_node.sim.faults import Crash, Fault, Restart
from pfl_node.sim.process_executor import ProcessExecutor
from pfl_node.sim.run_jobs import Message, OnProgress, run_all
from pfl_node.sim.worker_process import JsonOrder
from pfl_node.testing.schedules.generator import draw
from pfl_node.testing.schedules.trial import Trial, run

BATCH = 25  # schedules in one order to a worker
SHOWN = 3  # violations reported of one schedule


@dataclass(frozen=True, slots=True)
class SeedRange(JsonOrder):
    """A range of seeds, one schedule each."""

    first: int
    number: int
    policies: tuple[str, ...] = ()  # none: all built-in ones
    sets: tuple[str, ...] = ()

    @property
    def seeds(self) -> range:
        return range(self.first, self.first + self.number)


@dataclass
class Totals:
    """Of some schedules; plain values only, because they travel as JSON."""

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
        """Of all journals. It depends neither on the machine nor on the number of processes."""
        return hashlib.sha256("".join(self.digests).encode()).hexdigest()[:16]


def knobs_of(sets: Sequence[str]) -> dict[str, Any]:
    """The knobs that the user sets, which are not drawn at random."""
    return load_settings(sets=[text for text in sets if text.strip().startswith("policy.")]).policy.options


def run_batch(batch: SeedRange) -> Totals:
    totals, knobs = Totals(), knobs_of(batch.sets)
    for seed in batch.seeds:
        trial = run(draw(seed, batch.policies, knobs), batch.sets)
        totals.schedules += 1
        totals.checked.update(trial.checked)
        totals.counts.update(trial.counts)
        totals.policies[trial.schedule.policy] += 1
        totals.digests.append(trial.digest)
        totals.seconds += trial.seconds
        if trial.broken:
            findings = [str(violation) for violation in trial.broken[:SHOWN]]
            totals.broken.append({"seed": seed, "policy": trial.schedule.policy, "findings": findings})
    return totals


def _run_batch(order: str, _: OnProgress) -> dict[str, Any]:
    return vars(run_batch(SeedRange.load(order)))


def run_campaign(batch: SeedRange, workers: int, on_progress: Callable[[int], None] | None = None) -> Totals:
    """`on_progress` receives the number of schedules done. One worker means this process."""
    batches = [
        SeedRange(first, min(BATCH, batch.seeds.stop - first), batch.policies, batch.sets)
        for first in range(batch.first, batch.seeds.stop, BATCH)
    ]
    totals, done = Totals(), 0
    if workers == 1 or len(batches) == 1:
        for part in batches:
            totals.add(vars(run_batch(part)))
            if on_progress:
                on_progress(totals.schedules)
        return totals

    def on_message(number: int, message: Message) -> None:
        nonlocal done
        if message["event"] == "done":
            done += batches[number].number
            if on_progress:
                on_progress(done)

    with tempfile.TemporaryDirectory() as scratch, ProcessExecutor(min(workers, len(batches))) as executor:
        last = run_all(_run_batch, batches, executor, Path(scratch), on_message)
    for message in last:
        if message["event"] != "done":
            raise PflError(f"a worker failed: {message['why']}")
        totals.add(message["summary"])
    return totals


def shrink(trial: Trial, sets: Sequence[str] = ()) -> Trial:
    """Removes one fault after the other, a crash with its restart, while the same rule is broken."""
    rule = trial.broken[0].rule
    smaller = True
    while smaller:
        smaller = False
        for faults in _less(trial.schedule.faults):
            tried = run(replace(trial.schedule, faults=faults), sets, twice=rule == "repeats")
            if any(finding.rule == rule for finding in tried.broken):
                trial, smaller = tried, True
                break
    return trial


def _less(faults: tuple[Fault, ...]) -> Iterator[tuple[Fault, ...]]:
    if faults:
        yield ()
    for i, fault in enumerate(faults):
        match fault:
            case Crash(node=node):  # with its restart
                back = next((f for f in faults[i:] if isinstance(f, Restart) and f.node == node), None)
                yield tuple(f for f in faults if f is not fault and f is not back)
            case Restart(node=node):
                if not any(isinstance(f, Crash) and f.node == node for f in faults[i:]):
                    yield tuple(f for f in faults if f is not fault)
            case _:
                yield tuple(f for f in faults if f is not fault)
