"""`pfl-node identity`: a node's key and the id that follows from it."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from pfl_node.cli.options import Format
from pfl_node.cli.output import as_facts, as_json

Where = Annotated[Path, typer.Option("--data-dir", metavar="DIR", help="The node's directory.")]
Request = Annotated[bool, typer.Option("--request", help="Print a request for a certificate, for a CA elsewhere.")]
UNDECIDED = "have one issued (pfl-node ca issue), or without a CA write the ids of all into the file allow"
Name = Annotated[str, typer.Option(metavar="WORD", help="A word for people, in the certificate.")]


def identity(data_dir: Where, request: Request = False, name: Name = "", format: Format = "table") -> int:
    """Show who a node is; make its key if there is none."""
    from pfl_node.security.tls_files import KEY
    from pfl_node.security.x509_builder import make_request, own_key

    key, made = own_key(data_dir / KEY)
    if made:
        print(f"made {data_dir / KEY}: the node's identity; keep it, and to yourself", file=sys.stderr)
    if request:
        print(make_request(key, name or data_dir.resolve().name).decode(), end="")
        return 0
    facts = facts_of(data_dir, name)
    (as_json if format == "json" else as_facts)(facts)
    return 0


def facts_of(directory: Path, name: str = "") -> dict[str, Any]:
    from pfl_node.security.certificate import read_pem
    from pfl_node.security.credentials import load_credentials
    from pfl_node.security.requirements import prepare
    from pfl_node.security.tls_files import TlsFiles
    from pfl_node.security.x509_builder import key_id, load_key

    files = TlsFiles.find(directory)
    facts: dict[str, Any] = {"id": key_id(load_key(files.key)), "key": str(files.key)}
    if files.pinned and not files.allow.exists():
        return {**facts, "certificate": None, "hint": UNDECIDED}
    prepare(files, name)
    if not files.cert.exists():
        return {**facts, "certificate": None, "hint": "have it issued: pfl-node ca issue"}
    shown = read_pem(files.cert.read_bytes())
    facts |= {
        "certificate": str(files.cert),
        "subject": shown.subject,
        "name": shown.name,
        "role": "operator" if shown.operator else "node",
        "issuer": "nobody; peers must have the id on their allow-list" if files.pinned else shown.issuer,
        "valid_from": f"{shown.not_before:%Y-%m-%d %H:%M} UTC",
        "valid_until": f"{shown.not_after:%Y-%m-%d %H:%M} UTC",
        "serial": f"{shown.serial:x}",
        "fingerprint": shown.fingerprint,
    }
    load_credentials(files)  # says what is wrong with it, if something is
    return facts
