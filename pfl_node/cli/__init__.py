"""The `pfl-node` command: one typer app, one file per group of verbs.

A verb imports what it needs when it runs, so that the command starts fast. A user's mistake is one line on stderr.
"""

import sys
from collections.abc import Sequence

import typer

from pfl_node.cli import (
    ca_command,
    ca_invite,
    catalog,
    chaos,
    doctor,
    identity,
    inspect,
    join,
    lab,
    lab_results,
    node_command,
    sim,
    swarm_watch,
    use_model,
    watch,
)
from pfl_node.cli.client_credentials import takes_credentials
from pfl_node.cli.exit_codes import Verbs, debugging, exit_status
from pfl_node.failpoints import arm

app = typer.Typer(
    name="pfl-node",
    cls=Verbs,
    subcommand_metavar="[VERB]",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
app.callback(invoke_without_command=True)(node_command.run)
INSPECT = "Inspect a running node"
PANELS = {
    "Run": (node_command.demo, node_command.swarm, sim.sim, chaos.chaos),
    INSPECT: (
        inspect.status,
        inspect.peers,
        swarm_watch.watch,
        watch.events,
        inspect.ping,
        inspect.wait,
        inspect.reload,
        watch.bugreport,
    ),
    "Check a site": (doctor.doctor,),
    "Use a model": (use_model.predict, use_model.export),
    "Identity": (join.join, identity.identity),
    "Reference": (catalog.policies, catalog.tasks, node_command.config),
}
for panel, verbs in PANELS.items():
    for verb in verbs:
        app.command(rich_help_panel=panel)(takes_credentials(verb) if panel == INSPECT else verb)
for verb in (lab_results.export, lab_results.record, lab_results.publish, lab_results.verify):
    lab.app.command()(verb)
ca_invite.add_verbs(ca_command.app)
app.add_typer(lab.app, rich_help_panel="Run")
app.add_typer(ca_command.app, rich_help_panel="Identity")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb. Returns 0: success, 1: failure, 2: the user's mistake, 130: Ctrl-C."""
    try:
        arm()  # rejects a wrong PFL_FAILPOINTS before anything runs
        code = app(argv, prog_name="pfl-node", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except Exception as e:
        found = exit_status(e)
        if found is None or debugging():
            raise  # a bug of ours keeps its traceback
        print(f"pfl-node: {found.line}", file=sys.stderr)
        return found.code
    return code if isinstance(code, int) else 0
