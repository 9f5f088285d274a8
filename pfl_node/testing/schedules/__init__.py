"""Runs in which things go wrong by lot, `pfl-node chaos`: from a seed a schedule, from that a run under watch."""

from pfl_node.testing.schedules.generator import draw
from pfl_node.testing.schedules.rules import RULES, Violation
from pfl_node.testing.schedules.schedule import Schedule, command
from pfl_node.testing.schedules.trial import Trial, run

__all__ = ["RULES", "Schedule", "Trial", "Violation", "command", "draw", "run"]
