"""Calls to a bootstrap's enrolment, by a site that has a token and by the operator who has the CA. Blocking."""

from __future__ import annotations

import asyncio
import hashlib
import re
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pfl_node.address import parse_address
from pfl_node.enrolment.frames import ALPN, HEAD, OPERATOR_LIMIT, BadFrame, Message, frame, parse, size_of
from pfl_node.enrolment.join_token import digest_of
from pfl_node.errors import ConfigError
from pfl_node.ops.amounts import span
from pfl_node.security.certificate import read_pem
from pfl_node.security.credentials import EXPIRED, NOT_YET_VALID
from pfl_node.wire.connector import Connector, Proxy
from pfl_node.wire.http_connect import ConnectRefused

TIMEOUT = 10.0  # seconds
SKEW = 1800.0  # seconds between two clocks; at twice as much, certificates begin to fail
CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----\n?", re.S)

Compose = Callable[[bytes], Message]  # of a request, given the digest of the bootstrap's certificate


class Unreachable(ConfigError):
    """The bootstrap does not answer; a later attempt may succeed."""


class OtherAuthority(ConfigError):
    """A bootstrap of another swarm."""


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """The enrolment at `address`, whose certificate must be of the CA in `context`."""

    address: str
    context: ssl.SSLContext
    proxy: Proxy | None = None

    def call(self, compose: Compose, *, timeout: float = TIMEOUT) -> Message:
        """Raises Unreachable, or ConfigError if it cannot be trusted."""
        return _call(self, compose, timeout)


def find_authority(address: str, digest: bytes, proxy: Proxy | None = None) -> tuple[bytes, float]:
    """The CA's certificate in PEM, recognized by its digest, and the time there, which nothing proves. Nothing of
    the token is sent on this connection."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    answer = Bootstrap(address, _speaking(context), proxy).call(lambda _: {"do": "ca"})
    offered = CERTIFICATE.findall(str(answer.get("ca")))
    for pem in offered:
        try:
            if digest_of(read_pem(pem.encode()).whole) == digest:
                return pem.encode(), _number(answer.get("now"))
        except ValueError:
            continue
    raise OtherAuthority(f"{address} belongs to another CA")


def check_clock(address: str, there: float) -> None:
    """Before TLS checks dates: the reason of that failure would be hard to find. Raises ConfigError."""
    behind = there - time.time()
    if there and abs(behind) > SKEW:
        which = "behind" if behind > 0 else "ahead of"
        text = f"the clock of this machine is {span(abs(behind))} {which} that of {address}"
        raise ConfigError(
            f"{text}: set the wrong one (timedatectl set-ntp true), then repeat; certificates need both"
        )


def trusting(authority: bytes, certificate: tuple[Path, Path] | None = None) -> ssl.SSLContext:
    """Accepts members of this CA; presents a certificate and its key, if given."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # members are identified by their CA
    context.load_verify_locations(cadata=authority.decode("ascii"))
    if certificate:
        context.load_cert_chain(*certificate)
    return _speaking(context)


def _speaking(context: ssl.SSLContext) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols([ALPN])
    return context


def _call(bootstrap: Bootstrap, compose: Compose, timeout: float) -> Message:
    address = bootstrap.address
    try:
        with _connected(address, bootstrap.proxy) as plain, bootstrap.context.wrap_socket(plain) as secure:
            if secure.selected_alpn_protocol() != ALPN:
                raise ConfigError(f"{address} is not the enrolment of a bootstrap: is the port right?")
            server = hashlib.sha256(secure.getpeercert(binary_form=True) or b"").digest()
            secure.settimeout(timeout)
            secure.sendall(frame(compose(server)))
            return parse(_read(secure, size_of(_read(secure, HEAD), OPERATOR_LIMIT)))
    except ssl.SSLCertVerificationError as error:
        raise ConfigError(_untrusted(address, error)) from error
    except BadFrame as error:
        raise ConfigError(f"{address} is not the enrolment of a bootstrap of this release: {error}") from error
    except (OSError, EOFError) as error:
        raise Unreachable(f"{address} does not answer ({_why(error)})") from error


def _connected(address: str, proxy: Proxy | None) -> socket.socket:
    if proxy is None:
        return socket.create_connection(parse_address(address), TIMEOUT)

    async def through() -> socket.socket:
        async with asyncio.timeout(TIMEOUT):
            return await Connector(proxy).connect(address)

    connection = asyncio.run(through())
    connection.settimeout(TIMEOUT)
    return connection


def _read(secure: ssl.SSLSocket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = secure.recv(min(size - len(data), 1 << 16))
        if not part:
            raise EOFError
        data += part
    return data


def _untrusted(address: str, error: ssl.SSLCertVerificationError) -> str:
    if error.verify_code == NOT_YET_VALID:
        return f"the certificate of {address} is not valid yet: is the clock of this machine behind?"
    if error.verify_code == EXPIRED:
        return f"the certificate of {address} has expired: renew it there, unless the clock here is wrong"
    return f"{address} presents a certificate of another CA than its own: do not trust it"


def _why(error: Exception) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there"
    if isinstance(error, socket.gaierror):
        return "no such host"
    if isinstance(error, ConnectRefused):
        return str(error)
    if isinstance(error, TimeoutError):
        return "no answer in time; a firewall may drop packets"
    if isinstance(error, EOFError | ConnectionError | ssl.SSLError):
        return "it closed the connection"
    return getattr(error, "strerror", "") or str(error)


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
