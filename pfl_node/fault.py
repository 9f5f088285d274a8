"""Whose fault a failure is: a user's own code is named with its line, a bug of ours keeps its traceback."""

from __future__ import annotations

from pfl_node.errors import PflError
from pfl_node.plugin import in_a_line, line_of


def users_fault(what: str, place: str, error: Exception, kind: type[PflError]) -> PflError | None:
    """One line for a failure in the code at `place` (`file.py:Name`); None when it is not from there."""
    where = line_of(error)
    if ":" not in place or not where or isinstance(error, PflError):
        return None
    return kind(f"{what} {place} failed{where}: {in_a_line(error)}")
