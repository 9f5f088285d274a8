"""What typer says about a mistyped command line, in one line with the nearest name."""

from typing import Any

import typer
from typer.core import TyperGroup

from pfl_node.cli.options import ABOUT_ONE_NODE
from pfl_node.errors import ConfigError, nearest


class Verbs(TyperGroup):
    """The group of verbs; one that does not exist is answered with the nearest one."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if self.get_command(ctx, args[0]) is None:
            raise ConfigError(f"no such verb {args[0]!r}: {nearest(args[0], self.commands)}")
        return super().resolve_command(ctx, args)


def in_one_line(error: typer.TyperException) -> str:
    context = getattr(error, "ctx", None)
    option = getattr(error, "option_name", None)
    if option and context and not any(option in p.opts for p in context.command.params):
        known = [o for p in context.command.params for o in p.opts if o.startswith("--")]
        if option in ABOUT_ONE_NODE and "--policy" in known:
            return f"no such option {option}: it is about one node, {context.command_path} runs many"
        return f"no such option {option}: {nearest(option, known)}"
    text = error.format_message().rstrip(".")
    text = text.replace(": Value error, ", ": ").replace(": Input should", ": it should")
    path = context.command_path if context else "pfl-node"
    return f"{text[:1].lower()}{text[1:]} (see {path} --help)"
