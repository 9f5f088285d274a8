"""Where a node is reached: one gRPC server with health and reflection, and the options both ends must agree on.

Knows no numpy and no torch: the bootstrap service has nothing else.
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

from pfl_node.address import is_loopback, parse_address
from pfl_node.errors import ConfigError
from pfl_node.wire.quirks.health import LimitedHealth
from pfl_node.wire.quirks.log_filter import install_log_filter
from pfl_node.wire.quirks.strict_services import StrictServices

if TYPE_CHECKING:
    from pfl_node.wire.tls import Tls

__all__ = [
    "MAX_CHUNK",
    "Endpoint",
    "channel_options",
    "is_loopback",
    "join_address",
    "parse_address",
    "server_options",
]

log = logging.getLogger(__name__)

MAX_CHUNK = 1 << 20  # bytes of payload in one message
MAX_MESSAGE = MAX_CHUNK + (1 << 19)  # the rest is for the header and its notes

WINDOW = 2 << 20  # bytes; 40 MB/s at a round trip of 50 ms

KEEPALIVE_MS = 30_000
KEEPALIVE_TIMEOUT_MS = 10_000
PORTS_TRIED = 32
LOOK = 1.0  # seconds between two looks at whether gRPC's server is still there

Options = list[tuple[str, Any]]

_BOTH: Options = [
    ("grpc.max_receive_message_length", MAX_MESSAGE),
    ("grpc.max_send_message_length", MAX_MESSAGE),
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.http2.max_pings_without_data", 0),
    # What may lie unread in a stream. Left to itself gRPC reads 10 MB and more ahead on a fast link.
    ("grpc.http2.lookahead_bytes", WINDOW),
    ("grpc.http2.bdp_probe", 0),
]


def channel_options(connect_timeout: float = 5.0) -> Options:
    return [
        *_BOTH,
        ("grpc.keepalive_permit_without_calls", 0),
        # gRPC retries by keeping what was sent, up to 256 KiB; we know better what may be sent twice.
        ("grpc.enable_retries", 0),
        # Peers are dialled directly, whatever proxy the environment has for the web.
        ("grpc.enable_http_proxy", 0),
        ("grpc.min_reconnect_backoff_ms", int(connect_timeout * 1000)),
        ("grpc.initial_reconnect_backoff_ms", 200),
        ("grpc.max_reconnect_backoff_ms", 5_000),
    ]


def server_options() -> Options:
    return [
        *_BOTH,
        # A ping sooner than this is answered with GOAWAY, so it stays below the clients' interval.
        ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_MS // 3),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", KEEPALIVE_MS // 3),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.max_concurrent_streams", 256),
        ("grpc.so_reuseport", 0),
    ]


def join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Endpoint:
    """A gRPC server on one port. In this order: `add` services, `bind`, `start`, `serving`, `stop`."""

    def __init__(self, *, concurrency: int = 1024, tls: Tls | None = None) -> None:
        self.host = ""  # the numeric address that was bound
        self.port = 0
        self._tls = tls
        self._concurrency = concurrency
        self._services: dict[str, list[Callable[[grpc.aio.Server], None]]] = {}
        self._health = LimitedHealth()
        self._server: grpc.aio.Server | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()  # servers that were replaced

    def add(self, service: str, register: Callable[[grpc.aio.Server], None]) -> None:
        """Register handlers of the service with this full name; a service may have several registrations."""
        self._services.setdefault(service, []).append(register)

    async def bind(self, listen: str, also: Callable[[str, int], None] | None = None) -> int:
        """Take the port; 0: any free one. `also` takes the same number for something else, for example UDP, and
        raises OSError when it cannot. With port 0 another number is tried then, so `also` may be called again."""
        host, wanted = parse_address(listen, what="listen", any_port=True)
        self.host = _resolve(host)
        self._server = server = self._build()
        failure: Exception | None = None
        for _ in range(1 if wanted else PORTS_TRIED):
            try:
                self.port = _take(server, self.host, wanted, also, self._tls)
            except (OSError, RuntimeError) as error:
                failure = error
            else:
                return self.port
        raise ConfigError(_cannot(host, wanted, failure)) from failure

    @property
    def address(self) -> str:
        return join_address(self.host, self.port)

    async def start(self) -> None:
        """Answer calls; health says NOT_SERVING until `serving`."""
        await self.serving(False)
        install_log_filter()
        await self._bound.start()
        self._keeper = asyncio.create_task(self._keep())
        if self._tls:
            self._tls.watch()

    async def serving(self, ready: bool) -> None:
        statuses = health_pb2.HealthCheckResponse
        for service in ("", *self._services):
            await self._health.set(service, statuses.SERVING if ready else statuses.NOT_SERVING)

    async def stop(self, grace: float = 2.0) -> None:
        """Take no new calls and give those in hand `grace` seconds."""
        if self._tls:
            await self._tls.close()
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, *self._ending, return_exceptions=True)
            self._keeper = None
        if self._server is not None:
            await self._health.enter_graceful_shutdown()
            server, self._server = self._server, None
            await server.stop(grace)

    async def _keep(self) -> None:
        """One call whose path is no UTF-8 ends gRPC's server (`AioServer._server_main_loop` of grpcio 1.85, which
        decodes it). Then another takes its place, at the same port; calls in hand have a moment to end."""
        while True:
            try:
                if not await self._bound.wait_for_termination(LOOK):
                    return
            except UnicodeDecodeError as error:
                log.warning("a caller ended gRPC's server with the path %r; opening the port again", error.object)
                await self._replace()

    async def _replace(self) -> None:
        ended, self._server = self._bound, self._build()
        ending = asyncio.create_task(ended.stop(LOOK))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)
        while True:
            try:
                _take(self._server, self.host, self.port, None, self._tls)
                break
            except (OSError, RuntimeError) as error:
                log.warning("cannot open the port again yet: %s", error)
                await asyncio.sleep(LOOK)
        await self._server.start()

    @property
    def _bound(self) -> grpc.aio.Server:
        if self._server is None:
            raise RuntimeError("bind the endpoint first")
        return self._server

    def _build(self) -> grpc.aio.Server:
        server = grpc.aio.server(
            options=server_options(),
            maximum_concurrent_rpcs=self._concurrency,
            interceptors=[self._tls.door] if self._tls else None,
        )
        careful: Any = StrictServices(server)
        for register in chain.from_iterable(self._services.values()):
            register(careful)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, careful)
        names = (*self._services, health.SERVICE_NAME, reflection.SERVICE_NAME)
        mirror = reflection.aio.ReflectionServicer(names)  # type: ignore[attr-defined]
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(mirror, careful)
        return server


def _take(
    server: grpc.aio.Server,
    host: str,
    wanted: int,
    also: Callable[[str, int], None] | None,
    tls: Tls | None,
) -> int:
    """A plain socket goes first: it says why when the port cannot be had, and it can be given back."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, wanted))
        port: int = probe.getsockname()[1]
        if also is not None:
            also(host, port)
    address = join_address(host, port)
    return server.add_secure_port(address, tls.credentials()) if tls else server.add_insecure_port(address)


def _resolve(host: str) -> str:
    """One numeric address, IPv4 first: gRPC would take a name's second address when the first is in use."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}: no such host here ({error})") from error
    return str(min(found, key=lambda info: info[0] != socket.AF_INET)[4][0])


def _cannot(host: str, port: int, failure: Exception | None) -> str:
    if isinstance(failure, OSError) and failure.errno not in (errno.EADDRINUSE, None):
        return f"cannot listen on {join_address(host, port)}: {failure.strerror}"
    if not port:
        return f"cannot listen on {host}: no free port found in {PORTS_TRIED} tries"
    return f"cannot listen on {join_address(host, port)}: port {port} is in use; choose another one, or 0"
