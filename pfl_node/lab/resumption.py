"""From where an interrupted cell resumes: the state of all nodes after a segment, or a log of the jobs."""

from __future__ import annotations

from pfl_node.lab.experiment import Cell
from pfl_node.policies import load_policy
from pfl_node.sim.snapshot import may_be_held

SEGMENTS = 20  # a cell saves its state about this many times
LEAST = 5  # rounds in a segment


def is_held(cell: Cell) -> bool:
    """Are the nodes held after every segment? Outside lockstep that would change the result of a simulation, which
    logs its jobs instead. A swarm of real nodes is not reproducible anyway."""
    return cell.backend == "swarm" or may_be_held(load_policy(cell.settings.policy.name))


def segment_of(cell: Cell) -> int:
    """The rounds of a segment. The journals of a swarm depend on it, so it must not depend on machine or time."""
    rounds = cell.settings.rounds or 1
    return max(LEAST, -(-rounds // SEGMENTS))
