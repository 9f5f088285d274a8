"""`pfl-node ca`: the certificate authority of a swarm."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pfl_node.cli.exit_codes import Verbs
from pfl_node.cli.options import Format
from pfl_node.cli.output import as_json, as_table, say
from pfl_node.cli.private_keys import open_authority, warn_if_exposed
from pfl_node.errors import ConfigError

if TYPE_CHECKING:
    from pfl_node.security.ca import Authority
    from pfl_node.security.certificate import Certificate

BOOTSTRAP_DIR = Path("pfl-bootstrap")
app = typer.Typer(
    name="ca",
    cls=Verbs,
    help="The certificate authority that admits nodes to a swarm.",
    no_args_is_help=True,
    add_completion=False,
)
Where = Annotated[Path, typer.Option("--ca-dir", metavar="DIR", help="The CA's directory; keep it private.")]
Days = Annotated[float, typer.Option(min=0.001, metavar="DAYS", help="Validity of the certificate.")]
Name = Annotated[str, typer.Option(metavar="WORD", help="A name for people.")]
Here = Annotated[
    Path | None,
    typer.Option(
        "--data-dir", metavar="DIR", help="A node's directory on this machine; its key is created there."
    ),
]
Request = Annotated[
    Path | None,
    typer.Option(
        "--request", metavar="FILE", help="The output of `pfl-node identity --request` on another machine."
    ),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="With --request: where to write the files to send back."),
]
Operator = Annotated[
    bool,
    typer.Option("--operator", help="For an operator, who may inspect nodes (status, peers, ping) but not join."),
]


Bootstrap = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT", help="Where sites will dial the bootstrap; its directory pfl-bootstrap is made, too."
    ),
]


@app.command()
def init(
    ca_dir: Where = Path("pfl-ca"), name: Name = "pfl swarm CA", days: Days = 3650, bootstrap: Bootstrap = None
) -> None:
    """Create a CA."""
    from pfl_node.address import parse_address
    from pfl_node.security.ca import Authority

    if bootstrap:
        parse_address(bootstrap, what="bootstrap")
        _check_no_bootstrap(ca_dir)
    authority = Authority.create(ca_dir, name, days)
    made = authority.certificate
    say(f"CA {made.subject!r} in {ca_dir}, valid until {made.not_after:%Y-%m-%d}; keep ca.key there and private")
    if bootstrap:
        _prepare_bootstrap(authority, bootstrap)
    else:
        print(f"a node gets its certificate with: pfl-node ca issue --ca-dir {ca_dir} --data-dir DIR")


def _check_no_bootstrap(ca_dir: Path) -> None:
    """The bootstrap of a running swarm would use the certificate of the new CA at once. Raises ConfigError."""
    from pfl_node.security.tls_files import CERT, exists

    if not exists(BOOTSTRAP_DIR / CERT):
        return
    hint = "change to an empty directory for a new swarm"
    if ca_dir.is_dir():
        hint += "; another address for this one: pfl-node ca invite NAME… --bootstrap HOST:PORT"
    raise ConfigError(f"there already is a bootstrap in {BOOTSTRAP_DIR}: {hint}")


def _prepare_bootstrap(authority: "Authority", address: str) -> None:
    from pfl_node.address import is_loopback, parse_address
    from pfl_node.enrolment.operator_calls import BootstrapPlace
    from pfl_node.store.atomic import private_files

    with private_files():
        BootstrapPlace.remember(authority, address, None)
        authority.issue_for(BOOTSTRAP_DIR, name="bootstrap", days=3650)
    host, port = parse_address(address)
    bound = f"{address} --tls" if is_loopback(host) else f"0.0.0.0:{port} --advertise {address}"
    say(f"start the bootstrap: pfl-bootstrap --data-dir {BOOTSTRAP_DIR} --listen {bound} --enrol --relay")


@app.command()
def issue(
    ca_dir: Where = Path("pfl-ca"),
    data_dir: Here = None,
    request: Request = None,
    out: Out = None,
    name: Name = "",
    days: Days = 365,
    operator: Operator = False,
) -> None:
    """Issue or renew the certificate of a node or an operator."""
    from pfl_node.security.tls_files import KEY

    authority = open_authority(ca_dir)
    if data_dir is not None and request is None and out is None:
        made, place = authority.issue_for(data_dir, name=name, days=days, operator=operator), data_dir
        warn_if_exposed(data_dir / KEY)
    elif request is not None and data_dir is None:
        place = out or request.with_suffix(".issued")
        made = authority.issue_on(request, place, name=name, days=days, operator=operator)
    else:
        raise ConfigError(
            "name the recipient: --data-dir DIR on this machine, or --request FILE [--out DIR] for another one"
        )
    _show(made, place)


@app.command()
def revoke(
    who: Annotated[str, typer.Argument(metavar="WHO", help="An id, a name or a certificate.")],
    ca_dir: Where = Path("pfl-ca"),
) -> None:
    """Revoke a certificate. It takes effect when the list is copied to the nodes and the bootstrap."""
    from pfl_node.security.ca import Issued

    found = open_authority(ca_dir).revoke(who)
    words = (
        f"{found.id} ({found.name})" if isinstance(found, Issued) and found.name else getattr(found, "id", found)
    )
    where = "the data directory of every node and of the bootstrap"
    say(f"revoked {words}; copy {ca_dir / 'revoked'} to {where}; no restart is needed")


@app.command("list")
def list_(ca_dir: Where = Path("pfl-ca"), format: Format = "table") -> None:
    """List the issued certificates and whether they are valid."""
    authority = open_authority(ca_dir)
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


def _show(made: "Certificate", place: Path) -> None:
    role = "operator" if made.operator else "node"
    until = f"{made.not_after:%Y-%m-%d %H:%M} UTC"
    say(f"{role} {made.id}: {place / 'cert.pem'}, valid until {until}, named {made.name!r}")
