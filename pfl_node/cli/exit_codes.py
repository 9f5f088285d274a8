"""What a failure of a verb means to whoever called it: one line and an exit code."""

import os
from typing import NamedTuple

import typer

from pfl_node.cli.usage_errors import in_one_line
from pfl_node.errors import ConfigError, PflError, TaskError


class ExitStatus(NamedTuple):
    line: str
    code: int  # 1: it failed, 2: the user's mistake


def verdict(error: Exception) -> ExitStatus | None:
    """None: a bug of ours."""
    match error:
        case typer.TyperException():
            return ExitStatus(in_one_line(error), 2)
        case ConfigError() | TaskError():
            return ExitStatus(_one_line(error), 2)
        case PflError():
            return ExitStatus(_one_line(error), 1)
    from pfl_node.plugin import in_a_line, line_of

    if not (where := line_of(error)):
        return None
    return ExitStatus(f"your code failed{where}: {in_a_line(error)} (PFL_DEBUG=1 shows the way there)", 2)


def debugging() -> bool:
    """The user wants to see tracebacks."""
    return os.environ.get("PFL_DEBUG", "") not in ("", "0")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
