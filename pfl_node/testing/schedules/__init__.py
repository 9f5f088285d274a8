"""Random fault schedules (`pfl-node chaos`): a seed gives a schedule, and its run is checked against rules."""

from pfl_node.testing.schedules.generator import FaultSchedule, command, draw
from pfl_node.testing.schedules.rules import RULES, Violation
from pfl_node.testing.schedules.trial import Trial, run

__all__ = ["RULES", "FaultSchedule", "Trial", "Violation", "command", "draw", "run"]
