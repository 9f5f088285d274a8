"""Whether a node needs TLS, and whether it has the files for it; errors name the commands that create them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

from pfl_node.address import is_loopback, parse_address
from pfl_node.errors import ConfigError, Unavailable
from pfl_node.security.certificate import read_pem
from pfl_node.security.tls_files import TlsFiles
from pfl_node.security.trust import now
from pfl_node.store.atomic import write_atomic

RENEW = timedelta(days=365)  # before a self-issued certificate expires


def reason_for_tls(on: bool | None, insecure: bool, addresses: Iterable[tuple[str, str | None]]) -> str | None:
    """Why connections need TLS; None if they are plain. `addresses` are settings and their HOST:PORT."""
    if insecure:
        if on:
            raise ConfigError("--tls and --insecure exclude each other: leave one out")
        return None
    if on:
        return "TLS is required by the settings"
    given = [(what, text, parse_address(text, what=what, any_port=True)[0]) for what, text in addresses if text]
    outside = next(((what, text) for what, text, host in given if not is_loopback(host)), None)
    if outside is None:
        return None
    if on is False:
        raise ConfigError(f"{outside[0]} {outside[1]!r} is not loopback: to run without TLS, add --insecure")
    return f"{outside[0]} {outside[1]!r} is not loopback, so connections need TLS"


def check_files(files: TlsFiles, why: str) -> None:
    """Raises ConfigError if a file that the node needs to start is missing."""
    directory = files.directory
    mounted = directory.is_dir() and any(directory.iterdir())
    failure = ConfigError if mounted else Unavailable
    if files.pinned and not files.allow.exists():
        raise failure(
            f"{why}, but {directory} has neither a CA certificate ({directory / 'ca.pem'}) nor a list of ids "
            f"({files.allow}): run `pfl-node ca init` once and `pfl-node ca issue --data-dir {directory}`, or "
            "add --insecure if you trust this network"
        )
    if files.pinned:
        return  # `prepare` creates the rest
    for what, path in (("CA certificate", files.ca), ("key", files.key), ("certificate", files.cert)):
        if path is not None and not path.exists():
            raise failure(
                f"{why}, but there is no {what} at {path}: where the CA is, run `pfl-node ca issue --data-dir "
                f"{directory}`; on another machine, `pfl-node identity --data-dir {directory} --request`"
            )


def prepare(files: TlsFiles, name: str = "") -> None:
    """With pinned ids, issue the node's own certificate if it is missing or expires within a year."""
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
