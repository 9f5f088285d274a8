"""What came out of a simulation. Knows nothing of how it was run."""

from __future__ import annotations

from dataclasses import dataclass

from pfl_node.sim.outcome import Outcome


@dataclass(frozen=True, slots=True)
class Summary(Outcome):
    """Everything but the wall and CPU seconds follows from the settings, the faults and the seed."""

    models_lost: int
    virtual_seconds: float
    wall_seconds: float
    cpu_seconds: float
