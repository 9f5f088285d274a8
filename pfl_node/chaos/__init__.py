"""Runs in which things go wrong by lot, `pfl-node chaos`: from a seed a schedule, from that a run under watch."""

from pfl_node.chaos.draw import draw
from pfl_node.chaos.findings import RULES, Finding
from pfl_node.chaos.schedule import Schedule, command
from pfl_node.chaos.trial import Trial, run

__all__ = ["RULES", "Finding", "Schedule", "Trial", "command", "draw", "run"]
