"""A gRPC server on one port with health and reflection, and the channel options that both ends share.

Imports neither numpy nor torch, because the bootstrap service does without them.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from itertools import chain
from typing import TYPE_CHECKING, Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from pfl_node.address import join_address, parse_address
from pfl_node.errors import Unavailable
from pfl_node.wire.call_gate import CallGate
from pfl_node.wire.call_slots import CallSlots
from pfl_node.wire.listener import Listener, Tunnels
from pfl_node.wire.local_socket import LocalSocket
from pfl_node.wire.quirks.health import LimitedHealth
from pfl_node.wire.quirks.log_filter import install_log_filter
from pfl_node.wire.quirks.strict_services import StrictServices
from pfl_node.wire.resources import memory

if TYPE_CHECKING:
    from pfl_node.wire.tls import Tls

log = logging.getLogger(__name__)

MAX_CHUNK = 1 << 20  # bytes of payload in one message
MAX_MESSAGE = MAX_CHUNK + (1 << 19)  # the rest is for the header and its notes

WINDOW = 2 << 20  # bytes; 40 MB/s at a round trip of 50 ms

KEEPALIVE_MS = 30_000
KEEPALIVE_TIMEOUT_MS = 10_000
PORTS_TRIED = 32
CHECK_INTERVAL = 1.0  # seconds between checks that gRPC's server is running
STREAMS = 64  # concurrent calls on one connection
PENDING = 8192  # calls that gRPC has received and not handed over yet; it cancels some of those beyond
LEAST_CALLS = 64  # concurrent calls that are allowed however little memory there is


Options = list[tuple[str, Any]]

_BOTH: Options = [
    ("grpc.max_receive_message_length", MAX_MESSAGE),
    ("grpc.max_send_message_length", MAX_MESSAGE),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.http2.max_pings_without_data", 0),
    # Unread bytes of a stream. By default gRPC reads 10 MB and more ahead on a fast link.
    ("grpc.http2.lookahead_bytes", WINDOW),
    ("grpc.http2.bdp_probe", 0),
]


def channel_options(connect_timeout: float = 5.0) -> Options:
    return [
        *_BOTH,
        ("grpc.keepalive_permit_without_calls", 0),
        # For retries gRPC buffers sent messages, up to 256 KiB; the caller decides what may be sent twice.
        ("grpc.enable_retries", 0),
        # Otherwise a new channel to an address shares the connection of an old one, and its back-off after a
        # failure.
        ("grpc.use_local_subchannel_pool", 1),
        # Ignore the environment's proxy: peers are dialled directly.
        ("grpc.enable_http_proxy", 0),
        ("grpc.min_reconnect_backoff_ms", int(connect_timeout * 1000)),
        ("grpc.initial_reconnect_backoff_ms", 200),
        ("grpc.max_reconnect_backoff_ms", 5_000),
    ]


def server_options() -> Options:
    return [
        *_BOTH,
        # More frequent pings are answered with GOAWAY, so this is below the clients' keepalive interval.
        ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_MS // 3),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", KEEPALIVE_MS // 3),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.max_concurrent_streams", STREAMS),
        ("grpc.server.max_pending_requests", PENDING),
        ("grpc.server.max_pending_requests_hard_limit", 2 * PENDING),
    ]


class Endpoint:
    """Use in this order: `add` services, `bind`, `start`, `serving`, `stop`."""

    def __init__(self, *, concurrency: int = 1024, tls: Tls | None = None) -> None:
        self.host = ""  # the numeric address that was bound
        self.port = 0
        self.listener = Listener(tls)
        self._tls = tls
        self._gate = CallGate(self.listener, _slots(concurrency), tls.auth if tls else None)
        self._services: dict[str, list[Callable[[grpc.aio.Server], None]]] = {}
        self._health = LimitedHealth()
        self._server: grpc.aio.Server | None = None
        self._local: LocalSocket | None = None  # where gRPC's server listens
        self._supervisor: asyncio.Task[None] | None = None
        self._stopping: set[asyncio.Task[None]] = set()  # servers that were replaced

    def add(self, service: str, register: Callable[[grpc.aio.Server], None]) -> None:
        """Register handlers of the service with this full name; a service may have several registrations."""
        self._services.setdefault(service, []).append(register)

    def serve_tunnels(self, tunnels: Tunnels) -> None:
        """Hand connections that begin with CONNECT to a relay."""
        self.listener.tunnels = tunnels

    async def bind(self, listen: str, also: Callable[[str, int], None] | None = None) -> int:
        """Bind the port; 0 means any free one. `also` binds the same port number for another protocol and raises
        OSError if it is in use; with port 0 another number is tried then, so `also` may be called repeatedly."""
        host, wanted = parse_address(listen, what="listen", any_port=True)
        self.host = _resolve(host)
        failure: Exception | None = None
        for _ in range(1 if wanted else PORTS_TRIED):
            try:
                self.port = self.listener.bind(self.host, wanted)
                if also is not None:
                    also(self.host, self.port)
            except OSError as error:
                self.listener.unbind()
                failure = error
            else:
                return self.port
        raise Unavailable(_bind_error(host, wanted, failure)) from failure

    @property
    def address(self) -> str:
        return join_address(self.host, self.port)

    async def start(self) -> None:
        """Answer calls; the health service reports NOT_SERVING until `serving`."""
        await self.serving(False)
        install_log_filter()
        await self._open_server()
        self.listener.start()
        self._supervisor = asyncio.create_task(self._supervise())
        if self._tls:
            self._tls.watch(self.listener)

    async def serving(self, ready: bool) -> None:
        statuses = health_pb2.HealthCheckResponse
        for service in ("", *self._services):
            await self._health.set(service, statuses.SERVING if ready else statuses.NOT_SERVING)

    async def stop(self, grace: float = 2.0) -> None:
        """Refuse new calls and give those in progress `grace` seconds."""
        if self._tls:
            await self._tls.close()
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, *self._stopping, return_exceptions=True)
            self._supervisor = None
        self.listener.refuse_new()
        if self._server is not None:
            await self._health.enter_graceful_shutdown()
            server, self._server = self._server, None
            await server.stop(grace)
        self.listener.close()
        if self._local is not None:
            self._local.close()
            self._local = None

    async def _supervise(self) -> None:
        """Replace gRPC's server if it dies: grpcio 1.85's `AioServer._server_main_loop` decodes the path of every
        call, so that a path that is not UTF-8 ends the server (no upstream issue known)."""
        while True:
            try:
                if not await self._running.wait_for_termination(CHECK_INTERVAL):
                    return
            except UnicodeDecodeError as error:
                log.warning("the path %r of a call ended gRPC's server; restarting it", error.object)
                await self._replace()

    async def _replace(self) -> None:
        stopping = asyncio.create_task(self._running.stop(CHECK_INTERVAL))
        self._stopping.add(stopping)
        stopping.add_done_callback(self._stopping.discard)
        await self._open_server()

    async def _open_server(self) -> None:
        """Let gRPC's server listen on a new socket; it gets its connections from the listener."""
        old, self._local = self._local, LocalSocket()
        self._server = self._build()
        self._server.add_insecure_port(self._local.address)
        await self._server.start()
        self._local.seal()
        self.listener.serve(self._local)
        if old is not None:
            old.close()

    @property
    def _running(self) -> grpc.aio.Server:
        if self._server is None:
            raise RuntimeError("start the endpoint first")
        return self._server

    def _build(self) -> grpc.aio.Server:
        server = grpc.aio.server(options=server_options(), interceptors=[self._gate])
        strict: Any = StrictServices(server)
        for register in chain.from_iterable(self._services.values()):
            register(strict)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, strict)
        names = (*self._services, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflector = reflection.aio.ReflectionServicer(names)  # type: ignore[attr-defined]
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(reflector, strict)
        return server


def _slots(concurrency: int) -> CallSlots:
    """Incomplete messages may use an eighth of the memory, all calls together half of it."""
    one = WINDOW + MAX_MESSAGE
    most = max(LEAST_CALLS, min(concurrency, memory() // 2 // one))
    return CallSlots(most, max(LEAST_CALLS // 4, min(concurrency // 16, memory() // 8 // one)))


def _resolve(host: str) -> str:
    """One numeric address, IPv4 first: gRPC would bind a name's second address if the first is in use."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise Unavailable(f"cannot listen on {host}: no such host here ({error})") from error
    return str(min(found, key=lambda info: info[0] != socket.AF_INET)[4][0])


def _bind_error(host: str, port: int, failure: Exception | None) -> str:
    if isinstance(failure, OSError) and failure.errno not in (errno.EADDRINUSE, None):
        return f"cannot listen on {join_address(host, port)}: {failure.strerror}"
    if not port:
        return f"cannot listen on {host}: no free port found in {PORTS_TRIED} tries"
    return f"cannot listen on {join_address(host, port)}: port {port} is in use; choose another one, or 0"
