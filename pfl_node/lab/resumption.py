"""From where an interrupted cell resumes: the rounds of a segment, after which the state of all nodes is saved."""

from __future__ import annotations

from pfl_node.lab.experiment import Cell
from pfl_node.policies import load_policy
from pfl_node.sim.snapshot import resumes_independently

SEGMENTS = 20  # a cell saves its state about this many times
LEAST = 5  # rounds in a segment


def resumes(cell: Cell) -> bool:
    """Can the cell be saved without changing its result? To save a simulated node, hold it after a round. Outside
    lockstep others would have received its later models meanwhile, so such a run is not held: it starts again. A
    swarm of real nodes is not reproducible anyway."""
    return cell.backend == "swarm" or resumes_independently(load_policy(cell.settings.policy.name))


def segment_of(cell: Cell) -> int:
    """The rounds of a segment. The journals of a swarm depend on it, so it must not depend on machine or time."""
    rounds = cell.settings.rounds or 1
    return max(LEAST, -(-rounds // SEGMENTS)) if resumes(cell) else rounds
