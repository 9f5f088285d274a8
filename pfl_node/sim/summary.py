"""The summary of a simulation."""

from __future__ import annotations

from dataclasses import dataclass

from pfl_node.sim.outcome import Outcome


@dataclass(frozen=True, slots=True)
class Summary(Outcome):
    """All fields but wall_seconds and cpu_seconds are determined by the settings, the faults and the seed."""

    models_lost: int
    virtual_seconds: float
    wall_seconds: float
    cpu_seconds: float
