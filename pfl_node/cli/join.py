"""`pfl-node join`: prepares a directory for a node with a token of the operator."""

import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pfl_node.cli.options import Sets
from pfl_node.cli.output import say
from pfl_node.errors import ConfigError

if TYPE_CHECKING:
    from pfl_node.enrolment.site_calls import Certified, SiteRequest
    from pfl_node.enrolment.site_setup import SiteSetup

Token = Annotated[str, typer.Argument(metavar="TOKEN", help="From `pfl-node ca invite`; -: read it from stdin.")]
DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", metavar="DIR", help="Directory of this site; default: pfl- and the site's name."),
]
Listen = Annotated[str, typer.Option(metavar="HOST:PORT", help="Listening address of the node.")]
Advertise = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="Address for others to connect to, if not the listening one."),
]
OwnTask = Annotated[
    str | None,
    typer.Option("--task", metavar="FILE:NAME", help="This site's own copy of the task; it must be the same."),
]
Doctor = Annotated[bool, typer.Option("--doctor/--no-doctor", help="Check the site with `pfl-node doctor`.")]
Start = Annotated[bool, typer.Option("--start", help="Run the node in the foreground when it has joined.")]
Patience = Annotated[
    float | None, typer.Option(min=0, metavar="SECONDS", help="Give up waiting for the operator after this time.")
]
RETRY = 3.0  # seconds until the next attempt, if the bootstrap was reachable before


def join(
    token: Token,
    data_dir: DataDir = None,
    listen: Listen = "0.0.0.0:7946",
    advertise: Advertise = None,
    task: OwnTask = None,
    sets: Sets = None,
    doctor: Doctor = True,
    start: Start = False,
    timeout: Patience = None,
) -> int | None:
    """Join a swarm: create a key, get a certificate, write the settings and a systemd unit.

    It waits until the operator has confirmed the id that it prints. After an interruption, repeat the command.
    """
    from pfl_node.enrolment.join_token import JoinToken
    from pfl_node.enrolment.site_calls import SiteRequest
    from pfl_node.enrolment.site_setup import SiteSetup
    from pfl_node.store.atomic import private_files

    with private_files():
        read = JoinToken.decode(sys.stdin.read() if token == "-" else token)
        directory = (data_dir or Path(f"pfl-{read.name}")).absolute()
        setup = SiteSetup(token=read, directory=directory, listen=listen, advertise=advertise, sets=sets or ())
        setup.check()
        request = SiteRequest(read, directory, setup.proxy)
        plan = request.plan().with_own_task(task) if task else request.plan()
        written = setup.write(plan)
        say(f"{read.name}, of the run {read.run!r}: wrote {', '.join(written)} in {directory}")
        certified = _wait(request, timeout)
        request.keep(certified)
    say("confirmed: this site is a member now")
    if doctor:
        _examine(setup, received=list(plan.files), start=start)
    return _next(setup, start=start)


def _wait(request: "SiteRequest", timeout: float | None) -> "Certified":
    """Wait for the operator's confirmation; the bootstrap may be unreachable meanwhile. Raises ConfigError."""
    from pfl_node.enrolment.enrolment_client import Unreachable
    from pfl_node.enrolment.proofs import short_id

    name, short = request.token.name, short_id(request.id)
    say(f"tell the operator the id of this site, by telephone for example:  {short}")
    say(
        f"waiting until the operator runs `pfl-node ca confirm {name} {short}`; if interrupted, repeat the command"
    )
    end, last_error = time.monotonic() + (timeout or 0), ""
    while True:
        try:
            if certified := request.confirmed():
                return certified
        except Unreachable as error:
            if str(error) != last_error:
                print(f"pfl-node: {error}; trying again", file=sys.stderr, flush=True)
            last_error = str(error)
            time.sleep(RETRY)
        if timeout is not None and time.monotonic() >= end:
            text = f"the operator has not confirmed {name} {short} in {timeout:g} s"
            raise ConfigError(f"{text}: repeat this command later, nothing is lost")


def _examine(setup: "SiteSetup", *, received: list[str], start: bool) -> None:
    """Run `pfl-node doctor`, in a process of its own: gRPC supports one event loop per process. It calls the task,
    so received code is only called if the node starts anyway."""
    if received and not start:
        say(f"read {', '.join(received)}, then check the site:  pfl-node doctor --config {setup.config}")
        return
    subprocess.run([sys.executable, "-m", "pfl_node", "doctor", "--config", str(setup.config)], check=False)


def _next(setup: "SiteSetup", *, start: bool) -> int | None:
    """Run the node, or print how."""
    from pfl_node.cli import main

    if start:
        code = main(["--config", str(setup.config)])
        if code:
            hint = f"the site stays a member; correct {setup.config}, then run: {setup.start_line}"
            print(f"pfl-node: {hint}", file=sys.stderr)
        return code
    say(f"start it:                 {setup.start_line}")
    say(f"or at every boot:         sudo systemctl enable --now {setup.unit}")
    return None
