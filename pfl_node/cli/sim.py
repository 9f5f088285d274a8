"""`pfl-node sim`: the same policies on a virtual clock, many nodes in one process."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pfl_node.cli.options import ABOUT_ONE_NODE, Format, takes_settings
from pfl_node.cli.show import as_facts, as_json

if TYPE_CHECKING:
    from pfl_node.settings import Settings

Nodes = Annotated[int, typer.Option("--nodes", "-n", min=1, metavar="N", help="How many nodes.")]
Faults = Annotated[
    list[str] | None,
    typer.Option("--fault", metavar="FAULT", help="Such as crash:n003@12.5 or loss:0.02; may be repeated."),
]
Out = Annotated[Path | None, typer.Option(metavar="DIR", help="Write journal.jsonl and summary.json here.")]


@takes_settings(leave_out=ABOUT_ONE_NODE)
def sim(
    settings: "Settings", nodes: Nodes = 20, fault: Faults = None, out: Out = None, format: Format = "table"
) -> int:
    """Simulate a swarm: one seed decides everything, and the same seed gives the same journal."""
    from pfl_node.sim import simulate
    from pfl_node.sim.faults import node_ids, parse_faults

    faults = parse_faults(fault or (), node_ids(nodes))
    summary = simulate(settings, nodes=nodes, faults=faults, out=out, progress=None)
    (as_json if format == "json" else as_facts)(summary.as_dict())
    return 0
