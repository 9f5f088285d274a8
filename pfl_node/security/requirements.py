"""Whether a start needs TLS, and what for. What is missing is one line that says which commands make it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

from pfl_node.address import is_loopback, parse_address
from pfl_node.errors import ConfigError
from pfl_node.security.certificate import read_pem
from pfl_node.security.tls_files import TlsFiles
from pfl_node.security.trust import now
from pfl_node.store.atomic import write_atomic

RENEW = timedelta(days=365)  # before a certificate in nobody's name expires


def reason_for_tls(on: bool | None, insecure: bool, addresses: Iterable[tuple[str, str | None]]) -> str | None:
    """Why there is TLS, in words; None: connections are plain. `addresses` are HOST:PORT with what they are."""
    if insecure:
        if on:
            raise ConfigError("--tls and --insecure exclude each other: leave one out")
        return None
    if on:
        return "TLS is asked for"
    given = [(what, text, parse_address(text, what=what, any_port=True)[0]) for what, text in addresses if text]
    outside = next(((what, text) for what, text, host in given if not is_loopback(host)), None)
    if outside is None:
        return None
    if on is False:
        raise ConfigError(f"{outside[0]} {outside[1]!r} is not loopback: without TLS add --insecure")
    return f"{outside[0]} {outside[1]!r} is not loopback, so connections need TLS"


def check_files(files: TlsFiles, why: str) -> None:
    """Is there all that a start needs? Raises ConfigError."""
    directory = files.directory
    if files.pinned and not files.allow.exists():
        raise ConfigError(
            f"{why}, but {directory} has neither a CA's certificate ({directory / 'ca.pem'}) nor a list of ids "
            f"({files.allow}): run `pfl-node ca init` once and `pfl-node ca issue --data-dir {directory}`, or "
            "add --insecure if you trust this network"
        )
    if files.pinned:
        return  # the rest is made at the start
    for what, path in (("CA certificate", files.ca), ("key", files.key), ("certificate", files.cert)):
        if path is not None and not path.exists():
            raise ConfigError(
                f"{why}, but there is no {what} at {path}: where the CA is, run `pfl-node ca issue --data-dir "
                f"{directory}`; from afar, `pfl-node identity --data-dir {directory} --request`"
            )


def prepare(files: TlsFiles, name: str = "") -> None:
    """Where ids are pinned a node makes its own certificate, and a new one long before it expires."""
    if not files.pinned or not _stale(files.cert):
        return
    from pfl_node.security.x509_builder import make_own_certificate, own_key

    key, _ = own_key(files.key)
    write_atomic(files.cert, make_own_certificate(key, name))


def _stale(path: Path) -> bool:
    try:
        return read_pem(path.read_bytes()).not_after - now() < RENEW
    except (OSError, ValueError):
        return True
