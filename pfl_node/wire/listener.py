"""Accepts the connections of callers and limits them before they cost more than a file descriptor.

gRPC's server has no limit per address, and it cannot close the connection of a caller whose certificate is valid
but not accepted. So it listens on a socket of this process only, and gets the connections that passed here.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from time import thread_time
from typing import Protocol

from pfl_node.errors import Refused
from pfl_node.security.certificate import Certificate
from pfl_node.wire.caller_connection import CallerConnection
from pfl_node.wire.fair_share import TLS_START, FairShare
from pfl_node.wire.http_connect import ConnectRequest
from pfl_node.wire.local_socket import LocalSocket, name_of
from pfl_node.wire.resources import open_files

log = logging.getLogger(__name__)

BACKLOG = 1024
ACCEPTS = 64  # connections that are accepted before other work of the event loop
HANDSHAKE = 5.0  # seconds until a caller must be proven, and more if its bytes arrive slowly
SLOWEST = 16e3  # bytes per second; slower callers are disconnected
SWEEP = 0.5  # seconds
INTERVAL = 0.25  # seconds between measurements of the event loop's load
RETRY = 0.1  # seconds until the next attempt to accept, if no file can be opened
MOST_UNPROVEN, MOST_PROVEN = 1024, 16384  # connections
MOST_BUSY = 0.8  # fraction of the event loop's time for callers
PER_CALLER = 16  # connections of one certificate


class Access(Protocol):
    """Decides who may connect (`wire/tls.py`)."""

    def server_context(self) -> ssl.SSLContext: ...

    def authorize(self, certificate: Certificate) -> None:
        """Raises Refused."""

    def connection_refused(self, host: str, refused: Refused, certificate: Certificate | None) -> None: ...


class Tunnels(Protocol):
    """A relay, which gets the connections that begin with CONNECT."""

    def arrive(self, request: ConnectRequest, connection: socket.socket) -> None: ...

    def close_unless(self, allowed: Callable[[str], bool]) -> None: ...


class Listener:
    def __init__(self, access: Access | None) -> None:
        self._access = access
        self.tunnels: Tunnels | None = None
        self._socket: socket.socket | None = None
        self._local: LocalSocket | None = None
        self._unproven: dict[CallerConnection, None] = {}  # oldest first
        self._proven: dict[CallerConnection, None] = {}
        self._named: dict[str, CallerConnection] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.evicted: Counter[str] = Counter()  # closed connections, by kind
        self.busy_share: Callable[[], float] = lambda: MOST_BUSY  # callers' share of the event loop now
        self._fair = FairShare()
        self._paused: dict[CallerConnection, None] = {}  # oldest first
        self._measured = (0.0, 0.0)  # time and CPU time of this thread
        self._measuring: asyncio.TimerHandle | None = None

    def bind(self, host: str, port: int) -> int:
        """Raises OSError."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.unbind()
        self._socket = listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            listening.bind((host, port))
            listening.setblocking(False)
        except OSError:
            self.unbind()
            raise
        return int(listening.getsockname()[1])

    def unbind(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def start(self) -> None:
        assert self._socket
        self._socket.listen(BACKLOG)
        asyncio.get_running_loop().add_reader(self._socket, self._accept)
        self._timer = asyncio.get_running_loop().call_later(SWEEP, self._sweep)
        self._measure()

    def serve(self, local: LocalSocket | None) -> None:
        """Set the socket on which gRPC's server listens from now on."""
        self._local = local

    def refuse_new(self) -> None:
        """Connections that are open stay open."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self.unbind()

    def close(self) -> None:
        self.refuse_new()
        for timer in (self._timer, self._measuring):
            if timer:
                timer.cancel()
        for connection in (*self._unproven, *self._proven):
            connection.close()

    def of(self, peer: str) -> CallerConnection | None:
        """The connection of a call, given the peer's address that gRPC reports."""
        return self._named.get(name_of(peer))

    # -- called by connections -------------------------------------------------------------------------------

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def tls_context(self) -> ssl.SSLContext | None:
        return self._access.server_context() if self._access else None

    def authorize(self, certificate: Certificate) -> None:
        if self._access:
            self._access.authorize(certificate)

    def refused(self, connection: CallerConnection, refused: Refused) -> None:
        if self._access:
            self._access.connection_refused(connection.host, refused, connection.certificate)

    def connect(self, connection: CallerConnection) -> tuple[str, socket.socket]:
        if self._local is None:
            raise OSError("gRPC's server is being replaced")
        name, end = self._local.connect()
        self._named[name] = connection
        return name, end

    def proved(self, connection: CallerConnection) -> None:
        """Exempt the connection from the limits of unproven ones, and make room for it among those of its
        caller."""
        if self._unproven.pop(connection, connection) is None:
            connection.proven = True
            self._proven[connection] = None
            same = [one for one in self._proven if _owner(one) == _owner(connection)]
            limit = _limit(MOST_PROVEN)
            if len(same) > (PER_CALLER if connection.certificate else max(1, limit // 2)):
                self._evict(same, "per caller", connection)
            elif len(self._proven) > limit:
                self._evict(list(self._proven), "proven", connection)

    def spend(self, connection: CallerConnection, units: float) -> None:
        """Charge the caller for work. Above its share, its connections are not read for a moment."""
        if self._fair.spend(connection.caller, units) and connection not in self._paused:
            self._paused[connection] = None
            connection.pause()

    def may_start_tls(self, connection: CallerConnection) -> bool:
        """Whether TLS may begin; else the connection is resumed later. A handshake costs the node more than the
        unknown caller who begins it, so each address has a share, as callers have."""
        if self._fair.exhausted(connection.host):
            self._paused[connection] = None
            return False
        self._fair.spend(connection.host, TLS_START)
        return True

    def forget(self, connection: CallerConnection) -> None:
        self._paused.pop(connection, None)
        self._unproven.pop(connection, None)
        self._proven.pop(connection, None)
        self._named.pop(connection.name, None)

    def recheck(
        self,
        allowed: Callable[[Certificate], bool],
        permitted: Callable[[str], bool] = lambda member: True,  # noqa: ARG005
    ) -> None:
        """Close the connections of callers that are not accepted any more, by certificate and by id."""
        if self.tunnels is not None:
            self.tunnels.close_unless(permitted)
        for connection in list(self._proven):
            if connection.certificate and not allowed(connection.certificate):
                connection.close()

    # ------------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        for _ in range(ACCEPTS):
            if self._socket is None:
                return
            try:
                accepted, address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionError):
                return
            except OSError as error:  # too many open files, or no memory
                self._no_resources(error)
                return
            self.take(accepted, str(address[0]).removeprefix("::ffff:"))

    def take(self, accepted: socket.socket, host: str) -> None:
        """Serve a connection that was accepted here, or that arrived through a relay."""
        try:
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:  # the caller has reset the connection
            accepted.close()
            return
        connection = CallerConnection(self, accepted, host, self.now())
        self._unproven[connection] = None
        connection.wait()
        self._limit_unproven(host)

    def _limit_unproven(self, host: str) -> None:
        """One address may hold at most half of the unproven connections. The oldest one of the busiest address is
        evicted."""
        limit = _limit(MOST_UNPROVEN)
        hosts = Counter(one.host for one in self._unproven) if len(self._unproven) > limit // 2 else Counter()
        if len(self._unproven) > limit:
            host = hosts.most_common(1)[0][0]
        elif hosts[host] <= max(1, limit // 2):
            return
        self.evicted["unproven"] += 1
        next(one for one in self._unproven if one.host == host).close()

    def _no_resources(self, error: OSError) -> None:
        """Free files and memory: close the oldest half of the connections that have not proven anything."""
        if self._socket is None:
            return
        loop = asyncio.get_running_loop()
        oldest = list(self._unproven)[: len(self._unproven) // 2 + 1]
        log.warning("cannot accept connections: %s; closing %d that are idle", error.strerror, len(oldest))
        self.evicted["no resources"] += len(oldest)
        for connection in oldest:
            connection.close()
        if not oldest:
            loop.remove_reader(self._socket)
            loop.call_later(RETRY, self._accept_again)

    def _accept_again(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().add_reader(self._socket, self._accept)

    def _evict(self, among: list[CallerConnection], why: str, new: CallerConnection) -> None:
        """Close the connection without calls that was idle for longest, or else the new one."""
        idle = [one for one in among if not one.calls and one is not new]
        self.evicted[why] += 1
        min(idle, key=lambda one: one.active, default=new).close()

    def _measure(self) -> None:
        """Measure the load of the event loop, and divide the time that callers may use among them."""
        before, now = self._measured, (self.now(), thread_time())
        self._measured = now
        elapsed = now[0] - before[0]
        self._fair.renew((now[1] - before[1]) / elapsed if before[0] and elapsed else 0.0, self.busy_share())
        paused, self._paused = self._paused, {}
        for connection in paused:
            connection.resume()
        self._measuring = asyncio.get_running_loop().call_later(INTERVAL, self._measure)

    def _sweep(self) -> None:
        now = self.now()
        for connection in list(self._unproven):
            if now - connection.opened > HANDSHAKE + connection.received / SLOWEST:
                self.evicted["too slow"] += 1
                connection.close()
        self._timer = asyncio.get_running_loop().call_later(SWEEP, self._sweep)


def _owner(connection: CallerConnection) -> str:
    return connection.certificate.id if connection.certificate else connection.host


def _limit(most: int) -> int:
    """A relayed connection needs three file descriptors; all together use at most half of those available."""
    return max(16, min(most, open_files() // 8))
