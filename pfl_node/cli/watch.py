"""The verbs `events` and `bugreport`."""

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from pfl_node.cli.inspect import Timeout
from pfl_node.cli.options import Address, Format
from pfl_node.cli.output import say
from pfl_node.cli.remote import Remote, connected
from pfl_node.errors import ConfigError, nearest

Follow = Annotated[bool, typer.Option("--follow", "-f", help="Print new events until Ctrl-C.")]
Kind = Annotated[
    list[str] | None,
    typer.Option(metavar="KIND", help="Only events of this kind, such as round or died; may be repeated."),
]
Last = Annotated[int | None, typer.Option(min=0, metavar="N", help="Only the last N past events.")]
Where = Annotated[str, typer.Argument(metavar="HOST:PORT|DIR", help="A running node, or a data directory.")]
Out = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Output file; default: a name with the current time, in this directory."),
]

FIRST = ("text", "call", "peer", "reason", "round", "bytes", "how")  # printed first
LONG = ("settings", "from")  # printed with --format json only


def events(
    address: Address,
    follow: Follow = False,
    kind: Kind = None,
    last: Last = None,
    format: Format = "table",
    timeout: Timeout = 3.0,
) -> None:
    """Print the events of a node, and with --follow new ones as they happen."""
    from pfl_node.ops.events import KINDS

    for word in kind or ():
        if word not in KINDS:
            raise ConfigError(f"there is no event kind {word!r}: {nearest(word, KINDS)}")
    with connected(address, timeout) as node:
        names = _names(node) if format == "table" else {}
        for event in node.events(follow=follow, kinds=kind or (), last=last):
            say(json.dumps(event, ensure_ascii=False) if format == "json" else line(event, names))


def line(event: Mapping[str, Any], names: Mapping[str, str]) -> str:
    when = time.strftime("%H:%M:%S", time.localtime(event["time"]))
    data = dict(event["data"])
    if data.get("peer") in names:
        data["peer"] = names[data["peer"]]
    order = sorted(data, key=lambda key: FIRST.index(key) if key in FIRST else len(FIRST))
    words = [f"{key}={_word(data[key])}" for key in order if key not in LONG and data[key] not in (None, "")]
    return " ".join([when, f"{event['kind']:<17}", *words]).rstrip()


def _word(value: Any) -> str:
    match value:
        case float():
            return f"{value:.4g}"
        case str() if not value.isprintable() or " " in value or not value:
            return json.dumps(value, ensure_ascii=True)
        case str():
            return value
    return json.dumps(value, ensure_ascii=True)


def _names(node: Remote) -> dict[str, str]:
    return {m["id"]: m["name"] for m in node.members()[1] if m["name"].isprintable()}


def bugreport(where: Where, out: Out = None, timeout: Timeout = 5.0) -> None:
    """Pack status, peers, events, settings and versions for a bug report; no model, data or secret."""
    from pfl_node.ops.bugreport import from_directory, pack

    folder = Path(where)
    if folder.is_dir():
        parts = from_directory(folder)
    elif ":" in where:
        with connected(where, timeout) as node:
            parts = _from_node(node)
    else:
        raise ConfigError(f"{where} is neither the HOST:PORT of a node nor a data directory")
    path = out or Path(time.strftime("pfl-bugreport-%Y%m%d-%H%M%S.tar.gz"))
    for name, size, about in pack(path, parts):
        print(f"{name:<16} {size:>9,} bytes  {about}")
    print(f"written to {path}; it contains names and addresses of nodes: read it before you share it")


def _from_node(node: Remote) -> Iterator[tuple[str, str, Any]]:
    from pfl_node.ops.bugreport import from_node

    status = node.status()
    found: Iterable[dict[str, Any]] = list(node.events(follow=False)) if "uptime" in status else []
    return from_node(node.address, status, node.members()[1], found)
