"""One connection of a caller: TLS and authorization first, then its bytes are relayed to gRPC's server."""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING

from pfl_node.errors import Reason, Refused
from pfl_node.security.goaway import refusal_frames
from pfl_node.wire.fair_share import BYTE
from pfl_node.wire.http_connect import FIRST as CONNECT
from pfl_node.wire.http_connect import LONGEST, parse_request
from pfl_node.wire.pump import Pump
from pfl_node.wire.tls_stream import HANDSHAKE_RECORD, TlsStream

if TYPE_CHECKING:
    from pfl_node.security.certificate import Certificate
    from pfl_node.wire.listener import Listener

FIRST = 1 << 14  # bytes that are read at once during the handshake


class CallerConnection:
    """`proven`: the caller has shown an accepted certificate or, without TLS, sent a whole request."""

    def __init__(self, listener: Listener, network: socket.socket, host: str, now: float) -> None:
        self.host = host
        self.name = ""  # name of the connection to gRPC's server
        self.certificate: Certificate | None = None
        self.proven = False
        self.closed = False
        self.opened = self.active = now  # when it was accepted, and when the last bytes arrived
        self.received = 0  # bytes received
        self.calls = 0  # calls in progress
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._network = network
        self._request = b""  # a request for a connection through this relay
        self._server: socket.socket | None = None
        self._tls: TlsStream | None = None
        self._pumps: tuple[Pump, ...] = ()  # one to the server, one back

    @property
    def caller(self) -> str:
        """The key for limits: the id that TLS proves, else this connection."""
        return self.certificate.id if self.certificate else self.name

    def wait(self) -> None:
        """Wait for the first bytes. Until then a connection costs one file and no buffer."""
        self._loop.add_reader(self._network, self._first_bytes)

    def pause(self) -> None:
        for pump in self._pumps[:1]:
            pump.pause()

    def resume(self) -> None:
        if not self._pumps:
            self._first_bytes()
        for pump in self._pumps[:1]:
            pump.resume()

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._listener.forget(self)
        for pump in self._pumps:
            pump.close()
        self._loop.remove_reader(self._network)
        self._network.close()
        if self._server:
            self._server.close()

    # ------------------------------------------------------------------------------------------------------

    def _first_bytes(self) -> None:
        self._loop.remove_reader(self._network)
        context = self._listener.tls_context()
        try:
            first = self._network.recv(len(CONNECT), socket.MSG_PEEK)
            if not first:
                self.close()  # the caller only checked whether the port is open
            elif CONNECT.startswith(first) and self._listener.tunnels is not None:
                self._loop.add_reader(self._network, self._request_bytes)
            elif context is None:
                self._relay(b"")
            elif first[:1] == bytes((HANDSHAKE_RECORD,)):
                if self._listener.may_start_tls(self):
                    self._tls = TlsStream(context)
                    self._loop.add_reader(self._network, self._handshake_bytes, self._tls)
            else:
                self._refuse(Refused(Reason.NO_TLS, "it does not speak TLS"))
        except OSError:
            self.close()

    def _request_bytes(self) -> None:
        """A request for a connection through this relay. Its sender waits for the answer before it sends more."""
        try:
            data = self._network.recv(LONGEST)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        self._request += data
        self.received += len(data)
        request = parse_request(self._request)
        if request is not None and self._listener.tunnels is not None:
            self._loop.remove_reader(self._network)
            self.closed = True
            self._listener.forget(self)
            self._listener.tunnels.arrive(request, self._network)
        elif not data or len(self._request) > LONGEST:
            self.close()

    def _handshake_bytes(self, tls: TlsStream) -> None:
        try:
            data = self._network.recv(FIRST)
            self.received += len(data)
            if not data:
                self.close()
                return
            self._handshake(tls, data)
        except (BlockingIOError, InterruptedError):
            return
        except (OSError, ssl.SSLError, EOFError):
            self.close()

    def _handshake(self, tls: TlsStream, data: bytes) -> None:
        try:
            certificate = tls.handshake(data)
            self._network.send(tls.outgoing())
            if certificate is None:
                return
            self.certificate = certificate
            self._listener.authorize(certificate)
        except Refused as refused:
            self._network.send(tls.encrypt(refusal_frames(refused)) if self.certificate else tls.outgoing())
            self._refuse(refused)
            return
        self._loop.remove_reader(self._network)
        self._relay(tls.decrypt(b""))
        self._listener.proved(self)

    def _refuse(self, refused: Refused) -> None:
        self._listener.refused(self, refused)
        with suppress(OSError):
            self._network.recv(FIRST)  # closing with unread bytes would reset the connection and lose the reason
        self.close()

    def _relay(self, already: bytes) -> None:
        """Raises OSError if gRPC's server takes no more connections."""
        self.name, self._server = self._listener.connect(self)
        tls = self._tls
        self._pumps = (
            Pump(
                self._network,
                self._server,
                transform=tls.decrypt if tls else None,
                on_bytes=self._count,
                on_end=self.close,
            ),
            Pump(
                self._server,
                self._network,
                transform=tls.encrypt if tls else None,
                on_bytes=lambda _: None,
                on_end=self.close,
            ),
        )
        self._pumps[0].start(already)
        self._pumps[1].start()

    def _count(self, size: int) -> None:
        self.received += size
        self.active = self._loop.time()
        self._listener.spend(self, size * BYTE)
