"""`pfl-node identity`: a node's key, its id and its certificate."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from pfl_node.cli.options import Format
from pfl_node.cli.output import as_facts, as_json
from pfl_node.cli.private_keys import warn_if_exposed

Where = Annotated[Path, typer.Option("--data-dir", metavar="DIR", help="The node's directory.")]
Request = Annotated[
    bool, typer.Option("--request", help="Print a certificate request for a CA on another machine.")
]
NO_CERTIFICATE = "have one issued (pfl-node ca issue), or without a CA list the ids of all nodes in the file allow"
Name = Annotated[str, typer.Option(metavar="WORD", help="A name for people, in the certificate.")]


def identity(data_dir: Where, request: Request = False, name: Name = "", format: Format = "table") -> None:
    """Show the identity of a node; create its key if there is none."""
    from pfl_node.security.tls_files import KEY
    from pfl_node.security.x509_builder import make_request, own_key

    key, made = own_key(data_dir / KEY)
    warn_if_exposed(data_dir / KEY)
    if made:
        print(
            f"created {data_dir / KEY}, the identity of the node: back it up and keep it private", file=sys.stderr
        )
    if request:
        print(make_request(key, name or data_dir.resolve().name).decode(), end="")
    else:
        (as_json if format == "json" else as_facts)(facts_of(data_dir, name))


def facts_of(directory: Path, name: str = "") -> dict[str, Any]:
    from pfl_node.security.certificate import read_pem
    from pfl_node.security.credentials import load_credentials
    from pfl_node.security.requirements import prepare
    from pfl_node.security.tls_files import TlsFiles
    from pfl_node.security.x509_builder import key_id, load_key

    files = TlsFiles.find(directory)
    facts: dict[str, Any] = {"id": key_id(load_key(files.key)), "key": str(files.key)}
    if files.pinned and not files.allow.exists():
        return {**facts, "certificate": None, "hint": NO_CERTIFICATE}
    prepare(files, name)
    if not files.cert.exists():
        return {**facts, "certificate": None, "hint": "have one issued: pfl-node ca issue"}
    certificate = read_pem(files.cert.read_bytes())
    facts |= {
        "certificate": str(files.cert),
        "subject": certificate.subject,
        "name": certificate.name,
        "role": "operator" if certificate.operator else "node",
        "issuer": "none; peers must list the id in their allow file" if files.pinned else certificate.issuer,
        "valid_from": f"{certificate.not_before:%Y-%m-%d %H:%M} UTC",
        "valid_until": f"{certificate.not_after:%Y-%m-%d %H:%M} UTC",
        "serial": f"{certificate.serial:x}",
        "fingerprint": certificate.fingerprint,
    }
    load_credentials(files)  # raises if the certificate cannot be used
    return facts
