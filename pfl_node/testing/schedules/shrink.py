"""Reduces a schedule that breaks a rule to as few faults as still break it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from pfl_node.sim.faults import Crash, Fault, Restart
from pfl_node.testing.schedules.trial import Trial, run


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
