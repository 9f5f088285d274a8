"""What TLS adds to a node: whom it trusts, its door, its way to others, and a look at the files now and then."""

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

CLOSING = 0.1  # seconds until the connection of one who was turned away is gone from the kernel's table


class Tls:
    """One for each node. `watch` from its start to `close`."""

    def __init__(self, files: TlsFiles, *, reload: float = 1.0, name: str = "") -> None:
        prepare(files, name)
        self.trust = Trust(files)
        self.door = AuthInterceptor(self.trust)
        self.dialer = TlsDialer(self.trust)
        self._reload = reload
        self._watching: asyncio.Task[None] | None = None
        self._arrivals: ConnectionTable | None = None

    @property
    def id(self) -> PeerId:
        return self.trust.me

    def credentials(self) -> Any:
        """Of a server. A new certificate is shown to the next connection; open ones go on with the old one."""
        shown = self.trust.credentials

        def fetch() -> Any:
            nonlocal shown
            if self._arrivals:
                self._arrivals.look()
            if self.trust.credentials is shown:
                return None
            shown = self.trust.credentials
            return _configuration(shown)

        return grpc.dynamic_ssl_server_credentials(_configuration(shown), fetch, True)

    def overhear(self, ears: HandshakeLog, port: int) -> None:
        """From now on the log tells of connections that did not come as far as a call."""
        loop = asyncio.get_running_loop()
        self._arrivals = ConnectionTable(port)

        def tell(reason: Reason, words: str) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(loop.call_later, CLOSING, self._turned_away, reason, words)

        ears.tell = tell

    def watch(self) -> None:
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
            self._watching = None

    def _turned_away(self, reason: Reason, words: str) -> None:
        places = self._arrivals.left() if self._arrivals else []
        hosts = sorted({place.rpartition(":")[0] for place in places})
        self.door.turned_away(" or ".join(hosts), reason, words)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._reload)
            self.trust.refresh()


def _configuration(credentials: Credentials) -> Any:
    return grpc.ssl_server_certificate_configuration([(credentials.key, credentials.chain)], credentials.roots)
