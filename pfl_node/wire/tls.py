"""TLS of one endpoint: trust, authentication, dialer, and periodic reload of the files."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import grpc

from pfl_node.errors import Reason
from pfl_node.security.connections import ConnectionTable
from pfl_node.security.credentials import Credentials
from pfl_node.security.handshake_log import HandshakeLog
from pfl_node.security.requirements import prepare
from pfl_node.security.tls_files import TlsFiles
from pfl_node.security.trust import Trust
from pfl_node.types import PeerId
from pfl_node.wire.auth_interceptor import AuthInterceptor
from pfl_node.wire.dialer import TlsDialer

CLOSING = 0.1  # seconds after which the kernel's table no longer lists a refused connection


class Tls:
    def __init__(self, files: TlsFiles, *, reload: float = 1.0, name: str = "") -> None:
        prepare(files, name)
        self.trust = Trust(files)
        self.auth = AuthInterceptor(self.trust)
        self.dialer = TlsDialer(self.trust)
        self._reload = reload
        self._watching: asyncio.Task[None] | None = None
        self._connections: ConnectionTable | None = None

    @property
    def id(self) -> PeerId:
        return self.trust.me

    def credentials(self) -> Any:
        """Server credentials. A renewed certificate applies to new connections; open ones keep the old one."""
        current = self.trust.credentials

        def fetch() -> Any:
            nonlocal current
            if self._connections:
                self._connections.look()
            if self.trust.credentials is current:
                return None
            current = self.trust.credentials
            return _configuration(current)

        return grpc.dynamic_ssl_server_credentials(_configuration(current), fetch, True)

    def log_handshakes(self, handshakes: HandshakeLog, port: int) -> None:
        """From now on, count and log connections to this port that fail before their first call."""
        loop = asyncio.get_running_loop()
        self._connections = ConnectionTable(port)

        def on_failure(reason: Reason, text: str) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(loop.call_later, CLOSING, self._handshake_failed, reason, text)

        handshakes.on_failure = on_failure

    def watch(self) -> None:
        """Reload changed files until `close`."""
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
            self._watching = None

    def _handshake_failed(self, reason: Reason, text: str) -> None:
        addresses = self._connections.closed() if self._connections else []
        hosts = sorted({address.rpartition(":")[0] for address in addresses})
        self.auth.handshake_failed(" or ".join(hosts), reason, text)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._reload)
            self.trust.refresh()


def _configuration(credentials: Credentials) -> Any:
    return grpc.ssl_server_certificate_configuration([(credentials.key, credentials.chain)], credentials.roots)
