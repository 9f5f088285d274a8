"""What a node shows to others: its key and certificate, tried out against its own CA before anybody sees them."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from pfl_node.errors import ConfigError
from pfl_node.security.certificate import Certificate, read_pem
from pfl_node.security.pinned_issuer import NOBODY
from pfl_node.security.tls_files import TlsFiles, read
from pfl_node.types import PeerId


@dataclass(frozen=True, slots=True)
class Credentials:
    """One consistent set. `context` is for TLS by Python, which tells more than gRPC does."""

    key: bytes  # PEM
    chain: bytes  # PEM
    roots: bytes  # PEM of whom I believe
    certificate: Certificate
    context: ssl.SSLContext

    @property
    def id(self) -> PeerId:
        return self.certificate.id


def load_credentials(files: TlsFiles) -> Credentials:
    """Raises ConfigError for everything that would make others refuse it."""
    key, chain = read(files.key, "key"), read(files.cert, "certificate")
    roots = read(files.ca, "CA certificate") if files.ca else NOBODY
    try:
        certificate = read_pem(chain)
    except ValueError as error:
        raise ConfigError(f"certificate {files.cert}: {error}") from error
    if certificate.alias:
        raise ConfigError(f"certificate {files.cert} says {certificate.alias}, but its key is {certificate.id}")
    context = _context(files, roots)
    if files.key.read_bytes() != key or files.cert.read_bytes() != chain:
        raise ConfigError(f"{files.cert} changed while it was read")
    credentials = Credentials(key, chain, roots, certificate, context)
    _try_out(credentials, files)
    return credentials


def _context(files: TlsFiles, roots: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # the id is the name, and it is checked by the key
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    try:
        context.load_verify_locations(cadata=roots.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(f"{files.ca} is not a certificate in PEM") from error
    try:
        context.load_cert_chain(files.cert, files.key, password=_no_passphrase)
    except (ssl.SSLError, OSError, ValueError) as error:
        if getattr(error, "reason", "") == "KEY_VALUES_MISMATCH":
            raise ConfigError(f"certificate {files.cert} is not for the key {files.key}") from error
        raise ConfigError(f"cannot use {files.key} and {files.cert} for TLS: {error}") from error
    return context


def _no_passphrase() -> str:
    raise ValueError("the key has a passphrase; a node needs one without")


def _try_out(credentials: Credentials, files: TlsFiles) -> None:
    """A handshake with myself, in memory: would a peer with my CA take my certificate?"""
    host = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    host.load_cert_chain(files.cert, files.key)
    host.load_verify_locations(cadata=credentials.roots.decode("ascii"))
    host.verify_mode = ssl.CERT_REQUIRED
    guest = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    guest.check_hostname = False
    guest.verify_mode = ssl.CERT_NONE
    guest.load_cert_chain(files.cert, files.key)
    to_host, to_guest = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = (guest.wrap_bio(to_guest, to_host), host.wrap_bio(to_host, to_guest, server_side=True))
    try:
        for _ in range(3):
            for side in sides:
                _step(side)
    except ssl.SSLCertVerificationError as error:
        raise ConfigError(_unfit(error, credentials.certificate, files)) from error
    except ssl.SSLError as error:
        raise ConfigError(f"certificate {files.cert} cannot be used for TLS: {error}") from error


def _step(side: ssl.SSLObject) -> None:
    try:
        side.do_handshake()
    except ssl.SSLWantReadError:
        return


def _unfit(error: ssl.SSLCertVerificationError, mine: Certificate, files: TlsFiles) -> str:
    match error.verify_code:
        case 9:
            return (
                f"certificate {files.cert} is not valid before {mine.not_before:%Y-%m-%d %H:%M} UTC: whose clock?"
            )
        case 10:
            return f"certificate {files.cert} expired on {mine.not_after:%Y-%m-%d %H:%M} UTC; have it issued again"
        case 7 | 18 | 19 | 20 | 21:
            return f"certificate {files.cert} was not issued by the CA {files.ca or '(none: ids are pinned)'}"
    return f"certificate {files.cert} does not hold: {error.verify_message}"
