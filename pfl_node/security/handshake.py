"""A TLS handshake by Python before gRPC makes its own: it tells who is there and, when it fails, why.

gRPC would say no more than that the connection was closed.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl

from pfl_node.address import parse_address
from pfl_node.errors import PeerError, PeerGone, Reason, Refused
from pfl_node.security.certificate import Certificate, read_der
from pfl_node.security.credentials import Credentials

NOBODY_LISTENS = "nothing listens there (connection refused)"
NOT_YET, EXPIRED = 9, 10  # X.509's numbers of what is wrong
CLOSE = "closed the connection when it saw my certificate"


async def read_certificate(address: str, credentials: Credentials, timeout: float) -> Certificate:
    """Whose key answers there, under a certificate that my CA vouches for. Raises PeerGone or Refused."""
    try:
        async with asyncio.timeout(timeout):
            return await _knock(address, credentials)
    except TimeoutError as error:
        raise PeerGone(address, f"no TLS handshake within {timeout:g} s") from error


async def speaks_tls(address: str, timeout: float) -> Certificate | None:
    """What whoever speaks TLS there shows to everybody, to be believed in nothing; None: nobody does."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        async with asyncio.timeout(timeout):
            writer = (await _connect(address, context))[1]
    except (OSError, ValueError, TimeoutError):
        return None
    try:
        return _shown(writer)
    except ValueError:
        return None
    finally:
        writer.transport.abort()


async def _knock(address: str, credentials: Credentials) -> Certificate:
    try:
        reader, writer = await _connect(address, credentials.context)
    except ssl.SSLCertVerificationError as error:
        raise await _disbelieved(address, error) from error
    except ssl.SSLError as error:
        raise _no_tls(address, error) from error
    except OSError as error:
        raise _gone(address, error) from error
    try:
        shown = _shown(writer)
        if not await reader.read(1):  # with TLS 1.3 it judges my certificate after my handshake is done
            raise _rejected(address, credentials)
        return shown
    except ValueError as error:
        raise Refused(Reason.GARBAGE, f"its certificate cannot be read: {error}", address) from error
    except ssl.SSLError as error:
        raise _rejected(address, credentials) from error
    except OSError as error:
        raise _rejected(address, credentials) from error
    finally:
        writer.transport.abort()


async def _connect(address: str, context: ssl.SSLContext) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = parse_address(address)
    return await asyncio.open_connection(host, port, ssl=context)


def _shown(writer: asyncio.StreamWriter) -> Certificate:
    return read_der(writer.get_extra_info("ssl_object").getpeercert(binary_form=True) or b"")


async def _disbelieved(address: str, error: ssl.SSLCertVerificationError) -> Refused:
    shown = await speaks_tls(address, timeout=2.0)
    if error.verify_code in (NOT_YET, EXPIRED):
        when = f" ({shown.not_before:%Y-%m-%d %H:%M} to {shown.not_after:%Y-%m-%d %H:%M} UTC)" if shown else ""
        what = "expired" if error.verify_code == EXPIRED else "is not valid yet; is a clock wrong?"
        return Refused(Reason.EXPIRED, f"its certificate {what}{when}", address)
    issuer = f" ({shown.issuer!r})" if shown else ""
    return Refused(Reason.OTHER_CA, f"it presented a certificate of another CA{issuer}", address)


def _no_tls(address: str, error: ssl.SSLError) -> PeerError:
    if error.reason in ("WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"):
        text = "it does not speak TLS, this side does: start both with TLS, or both without"
        return Refused(Reason.NO_TLS, text, address)
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return PeerGone(address, "it closed the connection during the TLS handshake")
    return Refused(Reason.REJECTED, f"the TLS handshake failed: {error.reason or error}", address)


def _rejected(address: str, credentials: Credentials) -> Refused:
    why = "that has expired" if credentials.certificate.expired() else "it does not believe that issuer"
    return Refused(Reason.REJECTED, f"it {CLOSE} {credentials.certificate}: {why}", address)


def _gone(address: str, error: OSError) -> PeerError:
    if isinstance(error, ConnectionRefusedError):
        return PeerGone(address, NOBODY_LISTENS)
    if isinstance(error, socket.gaierror):
        return PeerGone(address, "no such host")
    if isinstance(error, ConnectionError) or error.errno in (None, errno.EPIPE):
        return PeerGone(address, "it closed the connection during the TLS handshake")
    return PeerGone(address, error.strerror or str(error))
