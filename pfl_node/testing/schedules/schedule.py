"""A fault schedule as a value: policy, size, settings and faults of one run."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pfl_node.sim.faults import Fault, format_fault


@dataclass(frozen=True, slots=True)
class Schedule:
    """Drawn from the seed, which also seeds the run itself."""

    seed: int
    policy: str  # as a user names it
    nodes: int
    rounds: int
    knobs: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)  # by dotted key
    faults: tuple[Fault, ...] = ()
    alert: bool = False  # failures are detected in a few seconds instead of after several rounds


def command(schedule: Schedule, sets: Sequence[str] = (), *, faults: bool = False) -> str:
    """The command that repeats it. `faults`: they are not those of the seed, so the command lists them."""
    words = ["pfl-node", "chaos", "--seed", str(schedule.seed), "--policy", schedule.policy]
    for text in sets:
        words += ["--set", text]
    if faults:
        for fault in schedule.faults:
            words += ["--fault", format_fault(fault)]
        words += [] if schedule.faults else ["--fault", "none"]
    return shlex.join(words)
