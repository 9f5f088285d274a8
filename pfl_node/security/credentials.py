"""A node's key and certificate, verified against its own CA before they are used.

Without a CA, the ids on the allow-list are trusted. TLS requires an issuer all the same, so every node issues its
own certificate in the name of PINNED_ISSUER, whose private key is public (the number 1): the chain proves nothing,
TLS proves possession of the key, and the list of ids decides.
"""

from __future__ import annotations

import ssl
from contextlib import suppress
from dataclasses import dataclass

from pfl_node.errors import ConfigError
from pfl_node.security.certificate import Certificate, read_pem
from pfl_node.security.tls_files import TlsFiles, read
from pfl_node.types import PeerId

NOT_YET_VALID, EXPIRED = 9, 10  # X.509 verification errors of OpenSSL
OTHER_ISSUER = (7, 18, 19, 20, 21)

PINNED_ISSUER_NAME = "nobody: the id counts"
PINNED_ISSUER = b"""-----BEGIN CERTIFICATE-----
MIIBdjCCARygAwIBAgIBATAKBggqhkjOPQQDAjAgMR4wHAYDVQQDDBVub2JvZHk6
IHRoZSBpZCBjb3VudHMwIBcNMjAwMTAxMDAwMDAwWhgPMjEyMDAxMDEwMDAwMDBa
MCAxHjAcBgNVBAMMFW5vYm9keTogdGhlIGlkIGNvdW50czBZMBMGByqGSM49AgEG
CCqGSM49AwEHA0IABGsX0fLhLEJH+Lzm5WOkQPJ3A32BLeszoPShOUXYmMKWT+NC
4v4af5uO5+tKfA+eFivOM1drMV7Oy7ZAaDe/UfWjRTBDMBIGA1UdEwEB/wQIMAYB
Af8CAQAwDgYDVR0PAQH/BAQDAgEGMB0GA1UdDgQWBBS0Z6OZnrXvpnHeADLwipye
Xv2g4TAKBggqhkjOPQQDAgNIADBFAiEAvhIBi30BD3b1z4109yKoUb3RPdtmd9PN
wl2emiWzBrQCIHnGWtQjdbp749RQyfSAbUU2SnNinxhbukiGlz3qrgV/
-----END CERTIFICATE-----
"""


@dataclass(frozen=True, slots=True)
class Credentials:
    """A consistent set. `context` is for a client that reads a peer's certificate, `server` for the listener."""

    key: bytes  # PEM
    chain: bytes  # PEM
    roots: bytes  # PEM of the trusted CAs
    certificate: Certificate
    context: ssl.SSLContext
    server: ssl.SSLContext

    @property
    def id(self) -> PeerId:
        return self.certificate.id


def load_credentials(files: TlsFiles) -> Credentials:
    """Raises ConfigError if peers would refuse the certificate."""
    key, chain = read(files.key, "key"), read(files.cert, "certificate")
    roots = read(files.ca, "CA certificate") if files.ca else PINNED_ISSUER
    try:
        certificate = read_pem(chain)
    except ValueError as error:
        raise ConfigError(f"certificate {files.cert}: {error}") from error
    if certificate.alias:
        raise ConfigError(f"certificate {files.cert} says {certificate.alias}, but its key is {certificate.id}")
    context, server = _context(files, roots), _server_context(files, roots)
    if files.key.read_bytes() != key or files.cert.read_bytes() != chain:
        raise ConfigError(f"{files.cert} changed while it was read")
    credentials = Credentials(key, chain, roots, certificate, context, server)
    _verify(credentials, files)
    return credentials


def _context(files: TlsFiles, roots: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # peers are identified by their key
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


def _server_context(files: TlsFiles, roots: bytes) -> ssl.SSLContext:
    """After `_context`, which has checked the files."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    context.num_tickets = 0  # clients do not resume sessions
    context.set_alpn_protocols(["h2"])
    context.load_verify_locations(cadata=roots.decode("ascii"))
    context.load_cert_chain(files.cert, files.key)
    return context


def _no_passphrase() -> str:
    raise ValueError("the key has a passphrase; a node needs a key without one")


def _verify(credentials: Credentials, files: TlsFiles) -> None:
    """Perform a handshake in memory with a server that has the same CA: peers verify the certificate like it."""
    server = credentials.server
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_mode = ssl.CERT_NONE
    client.load_cert_chain(files.cert, files.key)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = (client.wrap_bio(to_client, to_server), server.wrap_bio(to_server, to_client, server_side=True))
    try:
        for side in 3 * sides:
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
    except ssl.SSLCertVerificationError as error:
        raise ConfigError(_problem(error, credentials.certificate, files)) from error
    except ssl.SSLError as error:
        raise ConfigError(f"certificate {files.cert} cannot be used for TLS: {error}") from error


def _problem(error: ssl.SSLCertVerificationError, mine: Certificate, files: TlsFiles) -> str:
    name = f"certificate {files.cert}"
    if error.verify_code == NOT_YET_VALID:
        return f"{name} is not valid before {mine.not_before:%Y-%m-%d %H:%M} UTC; is a clock wrong?"
    if error.verify_code == EXPIRED:
        return f"{name} expired on {mine.not_after:%Y-%m-%d %H:%M} UTC; issue a new one"
    if error.verify_code in OTHER_ISSUER:
        return f"{name} was not issued by the CA {files.ca or '(none: ids are pinned)'}"
    return f"{name} is not valid: {error.verify_message}"
