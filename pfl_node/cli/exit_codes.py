"""The one-line message of a failed command, and its exit code."""

import os
from typing import Any, NamedTuple

import typer
from typer.core import TyperGroup

from pfl_node.cli.options import ABOUT_ONE_NODE
from pfl_node.errors import ConfigError, PflError, nearest
from pfl_node.printable import printable


class ExitStatus(NamedTuple):
    line: str
    code: int  # 1: it failed, 2: the user's mistake


def exit_status(error: Exception) -> ExitStatus | None:
    """None: a bug of ours."""
    if isinstance(error, typer.TyperException):
        return ExitStatus(printable(" ".join(_usage(error).split())), 2)
    from pfl_node.plugin import explain

    found = explain(error)
    if found.bug:
        return None
    hint = "" if isinstance(error, PflError) else " (PFL_DEBUG=1 prints the traceback)"
    return ExitStatus(printable(found.line) + hint, 2 if found.mistake else 1)


def debugging() -> bool:
    return os.environ.get("PFL_DEBUG", "") not in ("", "0")


class Verbs(TyperGroup):
    """A group of verbs that suggests the nearest one for a verb that does not exist."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if self.get_command(ctx, args[0]) is None:
            raise ConfigError(f"no such verb {args[0]!r}: {nearest(args[0], self.commands)}")
        return super().resolve_command(ctx, args)


def _usage(error: typer.TyperException) -> str:
    """Typer's message with the nearest option, or a reference to the help."""
    context = getattr(error, "ctx", None)
    option = getattr(error, "option_name", None)
    if option and context and not any(option in p.opts for p in context.command.params):
        known = [o for p in context.command.params for o in p.opts if o.startswith("--")]
        if option in ABOUT_ONE_NODE and "--policy" in known:
            return f"no such option {option}: it is for a single node, {context.command_path} runs many"
        return f"no such option {option}: {nearest(option, known)}"
    text = error.format_message().rstrip(".")
    text = text.replace(": Value error, ", ": ").replace(": Input should", ": it should")
    path = context.command_path if context else "pfl-node"
    return f"{text[:1].lower()}{text[1:]} (see {path} --help)"
