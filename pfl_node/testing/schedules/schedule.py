"""One run in which things go wrong, as a value: who does what, how large, and which faults come when. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pfl_node.sim.faults import Fault, in_text


@dataclass(frozen=True, slots=True)
class Schedule:
    """The seed decides all of it, and everything that is left to chance while it runs."""

    seed: int
    policy: str  # as a user names it
    nodes: int
    rounds: int
    knobs: Mapping[str, Any] = field(default_factory=dict)
    told: Mapping[str, Any] = field(default_factory=dict)  # settings by dotted key
    faults: tuple[Fault, ...] = ()
    alert: bool = (
        False  # is it noticed within a few seconds that somebody is gone, or later than usual rounds take?
    )


def command(schedule: Schedule, sets: Sequence[str] = (), *, faults: bool = False) -> str:
    """The line that repeats it; with its faults where they are not those of the seed."""
    words = ["pfl-node", "chaos", "--seed", str(schedule.seed), "--policy", schedule.policy]
    for text in sets:
        words += ["--set", text]
    if faults:
        for fault in schedule.faults:
            words += ["--fault", in_text(fault)]
        words += [] if schedule.faults else ["--fault", "none"]
    return shlex.join(words)
