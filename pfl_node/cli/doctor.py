"""`pfl-node doctor`: finds problems of a node or its site, and prints what to do about them."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pfl_node.cli.client_credentials import CREDENTIALS, ClientCredentials
from pfl_node.cli.options import takes_settings, unchecked
from pfl_node.cli.output import as_json, say
from pfl_node.cli.remote import Remote, connected
from pfl_node.errors import PeerError, PflError

if TYPE_CHECKING:
    from pfl_node.settings import Settings

Address = Annotated[
    str | None,
    typer.Argument(metavar="[HOST:PORT]", help="A running node; default: the node of the settings."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Output for programs.")]
Timeout = Annotated[float, typer.Option(min=0.001, metavar="SECONDS", help="Timeout of a call.")]
PEERS = 8  # number of peers whose versions are compared
NO_ANSWER = "is the node running, and is the port open?"
Row = Mapping[str, Any]


@takes_settings(read=unchecked)
def doctor(settings: "Settings", address: Address = None, json: AsJson = False, timeout: Timeout = 5.0) -> int:
    """Check a running node, or a site before its first start: reachability, exchange, certificate, key, disk,
    clock, version, pace, data, device. Prints one line for each, and what to do. The exit code is 1 if a check
    fails.
    """
    checks = list(_running(settings, address, timeout) if address else _configured(settings, timeout))
    failed = any(check["level"] == "fail" for check in checks)
    if json:
        as_json({"ok": not failed, "checks": checks})
    else:
        for check in checks:
            todo = f"; {check['todo']}" if check.get("todo") else ""
            say(f"{check['level']:<8} {check['name']:<12} {check['text']}{todo}")
    return int(failed)


def _configured(settings: "Settings", timeout: float) -> Iterable[Row]:
    """The checks of the node of these settings if it runs, else those before its first start."""
    from pfl_node.daemon.first_start import first_start_checks, port_is_taken
    from pfl_node.daemon.preflight import check
    from pfl_node.ops.loop import run_loop

    try:
        check(settings)
    except PflError as error:
        yield _row("settings", "fail", str(error))
        return
    yield _row("settings", "ok", f"run {settings.run!r}, policy {settings.policy.name}, task {settings.task.name}")
    if port_is_taken(settings.listen):
        todo = f"{settings.listen} is in use on this machine: by another program, unless this node runs"
        yield from _running(settings, settings.advertise or settings.listen, timeout, todo)
        return
    yield from (check.plain() for check in run_loop(first_start_checks(settings)))


def _running(settings: "Settings", address: str, timeout: float, todo: str = NO_ANSWER) -> Iterable[Row]:
    tls = settings.tls
    CREDENTIALS.set(ClientCredentials(settings.data_dir, tls.ca, tls.cert, tls.key))
    try:
        with connected(address, timeout) as node:
            status, (me, members) = node.status(), node.members()
    except PeerError as error:
        yield _row("answers", "fail", f"{address}: {error.text}", todo)
        return
    yield _row("answers", "ok", f"{status.get('name')} at {address} is {status.get('state')}")
    health = status.get("health")
    if not isinstance(health, dict):
        yield _row("exchange", "ok", "a bootstrap exchanges no models")
        return
    yield from health.get("checks", ())
    yield from status.get("machine", ())
    yield _versions(status, [m for m in members if m["id"] != me], timeout)


def _versions(status: Row, others: list[dict[str, Any]], timeout: float) -> Row:
    from pfl_node.ops.machine_checks import version_check

    found: dict[str, str] = {}
    for member in [m for m in others if m["role"] == "node" and m["state"] == "alive"][:PEERS]:
        try:
            with connected(member["address"], min(timeout, 2.0)) as node:
                found[member["name"]] = str(_version(node))
        except PeerError:
            continue
    return version_check(found, str(status.get("version"))).plain()


def _version(node: Remote) -> Any:
    return node.status().get("version", "")


def _row(name: str, level: str, text: str, todo: str = "") -> Row:
    return {"name": name, "level": level, "text": text, "todo": todo}
