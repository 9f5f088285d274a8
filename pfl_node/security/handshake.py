"""A TLS handshake by Python before gRPC's own: it yields the peer's certificate or the reason of a failure.

gRPC would report only a closed connection.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import Awaitable, Callable

from pfl_node.address import parse_address
from pfl_node.errors import PeerError, PeerGone, PflError, Reason, Refused
from pfl_node.security.certificate import Certificate, read_der
from pfl_node.security.credentials import EXPIRED as CERTIFICATE_EXPIRED
from pfl_node.security.credentials import NOT_YET_VALID, Credentials
from pfl_node.security.goaway import refusal_in

FIRST = 4096  # bytes; enough for the reason of a refusal
NO_CONNECTION = "Connect call failed"  # of asyncio, which leaves out the reason
CONNECTION_REFUSED = "nothing listens there (connection refused)"
Connect = Callable[[], Awaitable[socket.socket]]  # opens a connection otherwise than by dialling the address
NOT_TLS = ("WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE", "HTTP_REQUEST")


async def read_certificate(
    address: str, credentials: Credentials, timeout: float, connect: Connect | None = None
) -> Certificate:
    """The certificate of the server there, verified against our CA. Raises PeerGone or Refused."""
    try:
        async with asyncio.timeout(timeout):
            return await _handshake(address, credentials, connect)
    except TimeoutError as error:
        raise PeerGone(address, f"no answer within {timeout:g} s (TLS handshake)") from error


async def speaks_tls(address: str, timeout: float, connect: Connect | None = None) -> Certificate | None:
    """The unverified certificate of the server there; None if it does not speak TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        async with asyncio.timeout(timeout):
            writer = (await _connect(address, context, connect))[1]
    except (OSError, ValueError, TimeoutError, PflError):
        return None
    try:
        return _certificate(writer)
    except ValueError:
        return None
    finally:
        writer.transport.abort()


async def _handshake(address: str, credentials: Credentials, connect: Connect | None) -> Certificate:
    try:
        reader, writer = await _connect(address, credentials.context, connect)
    except ssl.SSLCertVerificationError as error:
        raise await _not_verified(address, error, connect) from error
    except ssl.SSLError as error:
        raise _no_tls(address, error) from error
    except OSError as error:
        raise _unreachable(address, error) from error
    try:
        certificate = _certificate(writer)
        first = await reader.read(FIRST)  # in TLS 1.3 the server checks our certificate after our handshake
        if not first:
            raise _rejected(address, credentials)
        if refused := refusal_in(first):
            raise Refused(refused.reason, refused.text, address)
        return certificate
    except ValueError as error:
        raise Refused(Reason.GARBAGE, f"its certificate cannot be read: {error}", address) from error
    except OSError as error:
        raise _rejected(address, credentials) from error
    finally:
        writer.transport.abort()


async def _connect(
    address: str, context: ssl.SSLContext, connect: Connect | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if connect is not None:
        return await asyncio.open_connection(sock=await connect(), ssl=context, server_hostname="")
    host, port = parse_address(address)
    return await asyncio.open_connection(host, port, ssl=context)


def _certificate(writer: asyncio.StreamWriter) -> Certificate:
    return read_der(writer.get_extra_info("ssl_object").getpeercert(binary_form=True) or b"")


async def _not_verified(address: str, error: ssl.SSLCertVerificationError, connect: Connect | None) -> Refused:
    certificate = await speaks_tls(address, 2.0, connect)
    if error.verify_code in (NOT_YET_VALID, CERTIFICATE_EXPIRED):
        dates = f" ({certificate.validity})" if certificate else ""
        expired = error.verify_code == CERTIFICATE_EXPIRED
        what = "expired" if expired else "is not valid yet; is a clock wrong?"
        return Refused(Reason.EXPIRED, f"its certificate {what}{dates}", address)
    issuer = f" ({certificate.issuer!r})" if certificate else ""
    return Refused(Reason.OTHER_CA, f"it presented a certificate of another CA{issuer}", address)


def _no_tls(address: str, error: ssl.SSLError) -> PeerError:
    if error.reason in NOT_TLS:
        text = "it does not speak TLS, this side does: start both with TLS, or both without"
        return Refused(Reason.NO_TLS, text, address)
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return PeerGone(address, "it closed the connection during the TLS handshake")
    return Refused(Reason.REJECTED, f"the TLS handshake failed: {error.reason or error}", address)


def _rejected(address: str, credentials: Credentials) -> Refused:
    mine = credentials.certificate
    why = "it has expired" if mine.expired() else "its issuer is not trusted there"
    return Refused(Reason.REJECTED, f"it closed the connection on seeing our certificate {mine}: {why}", address)


def _unreachable(address: str, error: OSError) -> PeerError:
    if isinstance(error, ConnectionRefusedError):
        return PeerGone(address, CONNECTION_REFUSED)
    if isinstance(error, socket.gaierror):
        return PeerGone(address, "no such host")
    if NO_CONNECTION in str(error) and error.errno is None:  # a name with several addresses
        return PeerGone(address, "none of its addresses accepts a connection")
    if isinstance(error, ConnectionError) or error.errno in (None, errno.EPIPE):
        return PeerGone(address, "it closed the connection during the TLS handshake")
    return PeerGone(address, os.strerror(error.errno) if NO_CONNECTION in str(error) else str(error.strerror))
