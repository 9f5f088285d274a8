"""The server's side of TLS on one connection, without I/O."""

from __future__ import annotations

import ssl

from pfl_node.errors import Reason, Refused
from pfl_node.security.certificate import Certificate, read_der
from pfl_node.security.credentials import EXPIRED, NOT_YET_VALID

HANDSHAKE_RECORD = 0x16  # the first byte of TLS
RECORD = 1 << 14  # bytes
NO_CERTIFICATE = "PEER_DID_NOT_RETURN_A_CERTIFICATE"


class TlsStream:
    def __init__(self, context: ssl.SSLContext) -> None:
        self._from_network, self._to_network = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._from_network, self._to_network, server_side=True)

    def handshake(self, data: bytes) -> Certificate | None:
        """The caller's certificate once the handshake is complete. Raises Refused with the alert in `outgoing`."""
        self._from_network.write(data)
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return None
        except ssl.SSLError as error:
            raise _failure(error) from error
        try:
            return read_der(self._tls.getpeercert(binary_form=True) or b"")
        except ValueError as error:
            raise Refused(Reason.GARBAGE, f"its certificate cannot be read: {error}") from error

    def decrypt(self, data: bytes) -> bytes:
        """Raises ssl.SSLError if the connection is damaged, EOFError if the caller ended it."""
        self._from_network.write(data)
        found: list[bytes] = []
        while True:
            try:
                plain = self._tls.read(RECORD)
            except ssl.SSLWantReadError:
                return b"".join(found)
            except ssl.SSLZeroReturnError:
                plain = b""
            if not plain:
                if found:
                    return b"".join(found)
                raise EOFError
            found.append(plain)

    def encrypt(self, data: bytes) -> bytes:
        self._tls.write(data)
        return self.outgoing()

    def outgoing(self) -> bytes:
        return self._to_network.read()


def _failure(error: ssl.SSLError) -> Refused:
    reason = error.reason or type(error).__name__
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code == EXPIRED:
            return Refused(Reason.EXPIRED, "its certificate expired")
        if error.verify_code == NOT_YET_VALID:
            return Refused(Reason.EXPIRED, "its certificate is not valid yet; is a clock wrong?")
        return Refused(Reason.OTHER_CA, "its certificate is of another CA")
    if reason == NO_CERTIFICATE:
        return Refused(Reason.REJECTED, "it showed no certificate")
    return Refused(Reason.REJECTED, f"the handshake failed ({reason})")
