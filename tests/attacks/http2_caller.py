"""A caller that speaks HTTP/2 by hand, plain or with TLS: calls that gRPC's own client would not make."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from pfl_node.address import parse_address
from pfl_node.security.tls_files import TlsFiles
from tests.fuzz import http2

FRAME = 16000  # bytes of data


class Caller:
    """One connection. Errors are ignored: a refused caller cannot send."""

    def __init__(self, address: str, files: TlsFiles | None = None) -> None:
        self.address = address
        self._socket: socket.socket = socket.create_connection(parse_address(address), 10)
        self.refused = False
        try:
            if files:
                self._socket = _context(files).wrap_socket(self._socket)
            self._socket.sendall(http2.PREFACE + http2.frame(http2.SETTINGS))
        except OSError:
            self.refused = True

    def call(self, path: str, stream: int, *, sent: bytes = b"", size: int = 0) -> None:
        """A call with a message of `size` bytes of which only `sent` arrive."""
        head = http2.frame(
            http2.HEADERS, http2.head(path, self.address), flags=http2.END_HEADERS, stream=2 * stream + 1
        )
        data = http2.grpc_message(sent, size=size) if size else b""
        frames = [data[n : n + FRAME] for n in range(0, len(data), FRAME)]
        self._send(head, *(http2.frame(http2.DATA, part, stream=2 * stream + 1) for part in frames))

    def bad_path(self) -> None:
        """A call whose path is not UTF-8."""
        head = http2.head("/pfl.v", self.address).replace(b"/pfl.v", b"/pf\x80\x80v")
        self._send(http2.frame(http2.HEADERS, head, flags=http2.END_HEADERS | http2.END_STREAM, stream=1))

    def is_open(self) -> bool:
        try:
            self._socket.settimeout(0.01)
            while self._socket.recv(1 << 16):
                pass
        except TimeoutError:
            return True
        except OSError:
            pass
        return False

    def close(self) -> None:
        self._socket.close()

    def _send(self, *frames: bytes) -> None:
        with suppress(OSError):
            self._socket.settimeout(2.0)
            self._socket.sendall(b"".join(frames))


@contextmanager
def callers(address: str, count: int, files: TlsFiles | None) -> Iterator[list[Caller]]:
    with ExitStack() as stack:
        made = [Caller(address, files) for _ in range(count)]
        for one in made:
            stack.callback(one.close)
        yield made


def _context(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    context.load_cert_chain(files.cert, files.key)
    return context
