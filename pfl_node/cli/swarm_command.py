"""`pfl-node swarm` and `pfl-node demo`: many nodes on this machine that communicate over gRPC."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pfl_node.cli.options import ABOUT_ONE_NODE, Nodes, takes_settings

if TYPE_CHECKING:
    from pfl_node.settings import Settings

Workers = Annotated[
    int | None, typer.Option(min=1, metavar="W", help="Processes that host the nodes; default: one per core.")
]
Out = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Keep journals, models and the summary in this directory.")
]
Live = Annotated[bool, typer.Option("--live/--no-live", help="Show the progress.")]


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
