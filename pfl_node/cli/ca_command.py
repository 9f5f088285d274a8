"""`pfl-node ca`: a swarm's own CA, which says who belongs to it."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pfl_node.cli.exit_codes import Verbs
from pfl_node.cli.options import Format
from pfl_node.cli.output import as_json, as_table
from pfl_node.errors import ConfigError

if TYPE_CHECKING:
    from pfl_node.security.certificate import Certificate

app = typer.Typer(
    name="ca", cls=Verbs, help="Who belongs to a swarm: its own CA.", no_args_is_help=True, add_completion=False
)
Where = Annotated[Path, typer.Option("--ca-dir", metavar="DIR", help="Where the CA lives; keep it to yourself.")]
Days = Annotated[float, typer.Option(min=0.001, metavar="DAYS", help="How long the certificate holds.")]
Name = Annotated[str, typer.Option(metavar="WORD", help="A word for people.")]
Here = Annotated[
    Path | None,
    typer.Option("--data-dir", metavar="DIR", help="A node's directory on this machine; its key is made there."),
]
Request = Annotated[
    Path | None,
    typer.Option("--request", metavar="FILE", help="What `pfl-node identity --request` printed elsewhere."),
]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="With --request: where to put the files to send back.")
]
Operator = Annotated[
    bool, typer.Option("--operator", help="It may look (status, peers, ping), but not take part.")
]


@app.command()
def init(ca_dir: Where = Path("pfl-ca"), name: Name = "pfl swarm CA", days: Days = 3650) -> int:
    """Make a CA."""
    from pfl_node.security.ca import Authority

    made = Authority.create(ca_dir, name, days).certificate
    print(f"CA {made.subject!r} in {ca_dir}, valid until {made.not_after:%Y-%m-%d}; ca.key never leaves it")
    print(f"a node gets its certificate with: pfl-node ca issue --ca-dir {ca_dir} --data-dir DIR")
    return 0


@app.command()
def issue(
    ca_dir: Where = Path("pfl-ca"),
    data_dir: Here = None,
    request: Request = None,
    out: Out = None,
    name: Name = "",
    days: Days = 365,
    operator: Operator = False,
) -> int:
    """Give a node or an operator its certificate; once more: renew it."""
    from pfl_node.security.ca import Authority

    authority = Authority(ca_dir)
    if data_dir is not None and request is None and out is None:
        made, place = authority.issue_for(data_dir, name=name, days=days, operator=operator), data_dir
    elif request is not None and data_dir is None:
        place = out or request.with_suffix(".issued")
        made = authority.issue_on(request, place, name=name, days=days, operator=operator)
    else:
        raise ConfigError(
            "for whom? --data-dir DIR on this machine, or --request FILE [--out DIR] from another one"
        )
    _tell(made, place)
    return 0


@app.command()
def revoke(
    who: Annotated[str, typer.Argument(metavar="WHO", help="An id, a name or a certificate.")],
    ca_dir: Where = Path("pfl-ca"),
) -> int:
    """Nobody talks to it any more, as soon as the list is on the nodes."""
    from pfl_node.security.ca import Authority, Issued

    found = Authority(ca_dir).revoke(who)
    words = (
        f"{found.id} ({found.name})" if isinstance(found, Issued) and found.name else getattr(found, "id", found)
    )
    print(
        f"revoked {words}; copy {ca_dir / 'revoked'} into the data directory of every node, none needs a restart"
    )
    return 0


@app.command("list")
def list_(ca_dir: Where = Path("pfl-ca"), format: Format = "table") -> int:
    """What was issued, and what holds of it."""
    from pfl_node.security.ca import Authority

    authority = Authority(ca_dir)
    revoked, now = authority.revoked(), datetime.now(UTC).strftime("%Y-%m-%dT%H:%MZ")
    rows = [
        {
            "id": line.id,
            "name": line.name,
            "role": "operator" if line.operator else "node",
            "state": "revoked" if line.id in revoked else "expired" if line.expires < now else "valid",
            "issued": line.issued,
            "expires": line.expires,
            "serial": line.serial,
        }
        for line in authority.issued()
    ]
    if format == "json":
        as_json({"ca": authority.certificate.subject, "issued": rows, "revoked": sorted(revoked)})
    else:
        columns = ("name", "id", "role", "state", "issued", "expires")
        as_table(columns, [[row[column] for column in columns] for row in rows])
    return 0


def _tell(made: "Certificate", place: Path) -> None:
    role = "operator" if made.operator else "node"
    print(f"{role} {made.name} ({made.id}): {place / 'cert.pem'}, valid until {made.not_after:%Y-%m-%d %H:%M} UTC")
