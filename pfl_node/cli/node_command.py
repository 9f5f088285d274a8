"""The verbs that run nodes over gRPC: `pfl-node` without a verb runs one in the foreground, `swarm` and `demo` run
many on this machine. `config` prints their settings."""

import inspect
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pfl_node import __version__
from pfl_node.cli.exit_codes import debugging, exit_status
from pfl_node.cli.options import ABOUT_ONE_NODE, Nodes, takes_settings, with_signature
from pfl_node.cli.output import as_json
from pfl_node.errors import ConfigError

if TYPE_CHECKING:
    from pfl_node.settings import Settings


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"pfl-node {__version__}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
]

Workers = Annotated[
    int | None, typer.Option(min=1, metavar="W", help="Processes that host the nodes; default: one per core.")
]
Out = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Keep journals, models and the summary in this directory.")
]
Live = Annotated[bool, typer.Option("--live/--no-live", help="Show the progress.")]


@takes_settings()
def _daemon(settings: "Settings") -> int:
    from pfl_node.daemon.process import run_daemon
    from pfl_node.ops.log_lines import for_people

    try:
        return run_daemon(settings)
    except Exception as error:
        if for_people(settings.log.format, sys.stderr) or debugging():
            raise
        return _log_failure(error)


def _log_failure(error: Exception) -> int:
    """In a JSON log, the error that ends the node is a log event too. Returns the exit code."""
    import structlog

    log = structlog.get_logger(__name__)
    if (found := exit_status(error)) is None:
        log.critical("a bug ended the node", exc_info=error)
        return 1
    log.error(found.line)
    return found.code


def _run(ctx: typer.Context, version: Version = False, **given: Any) -> int | None:  # noqa: ARG001
    """Peer-to-peer federated learning: train with others, keep your data.

    Without a verb, run a node in the foreground until --rounds are done or a signal arrives.

    A second node joins the first with --peer-seed and the address that the first one prints.
    """
    if ctx.invoked_subcommand is None:
        return _daemon(**given)
    if any(value is not None for value in given.values()):
        raise ConfigError(f"options go after the verb: pfl-node {ctx.invoked_subcommand} [OPTIONS]")
    return None


_ctx, _version, _ = inspect.signature(_run).parameters.values()
run = with_signature(_run, [_ctx, *inspect.signature(_daemon).parameters.values(), _version], like=_run)


@takes_settings(leave_out=ABOUT_ONE_NODE)
def swarm(
    settings: "Settings", nodes: Nodes = 8, workers: Workers = None, out: Out = None, live: Live = True
) -> int:
    """Run many nodes on this machine, in a few processes, over real connections."""
    from pfl_node.swarm.launch import run_swarm

    return run_swarm(settings, nodes=nodes, workers=workers, out=out, live=live)


@takes_settings(leave_out=ABOUT_ONE_NODE)
def demo(
    settings: "Settings", nodes: Nodes = 12, workers: Workers = None, out: Out = None, live: Live = True
) -> int:
    """Run a small swarm on handwritten digits, which half of the nodes see upside down, and print a report."""
    from pfl_node.swarm.demo import run_demo

    return run_demo(settings, nodes=nodes, workers=workers, out=out, live=live)


@takes_settings()
def config(settings: "Settings", format: Annotated[Literal["toml", "json"], typer.Option()] = "toml") -> None:
    """Print the effective settings: file < environment (PFL_*) < flags < --set. Secrets are printed as ***."""
    from pfl_node.policies import configure, load_policy
    from pfl_node.settings import PolicySettings
    from pfl_node.settings.load import dump
    from pfl_node.settings.redact import without_secrets

    name = settings.policy.name
    knobs = configure(load_policy(name), settings.policy.options).model_dump(mode="json")
    settings = settings.model_copy(update={"policy": PolicySettings(name=name, **knobs)})
    if format == "json":
        as_json(without_secrets(settings))
    else:
        print(dump(settings), end="")
