"""TLS of one endpoint: trust, authorization, dialer, and periodic reload of the files."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING

from pfl_node.errors import Refused
from pfl_node.security.certificate import Certificate
from pfl_node.security.requirements import prepare
from pfl_node.security.tls_files import TlsFiles
from pfl_node.security.trust import Trust
from pfl_node.types import PeerId
from pfl_node.wire.authorization import Authorization
from pfl_node.wire.dialer import TlsDialer

if TYPE_CHECKING:
    from pfl_node.wire.listener import Listener


class Tls:
    def __init__(self, files: TlsFiles, *, reload: float = 1.0, name: str = "") -> None:
        prepare(files, name)
        self.trust = Trust(files)
        self.auth = Authorization(self.trust)
        self.dialer = TlsDialer(self.trust)
        self._reload = reload
        self._watching: asyncio.Task[None] | None = None

    @property
    def id(self) -> PeerId:
        return self.trust.me

    def server_context(self) -> ssl.SSLContext:
        """A renewed certificate applies to new connections; open ones keep the old one."""
        return self.trust.credentials.server

    def authorize(self, certificate: Certificate) -> None:
        """Raises Refused."""
        self.trust.check(certificate)

    def connection_refused(self, host: str, refused: Refused, certificate: Certificate | None) -> None:
        self.auth.connection_refused(host, refused, certificate)

    def watch(self, listener: Listener) -> None:
        """Reload changed files until `close`, and close connections of callers that are not accepted any more."""
        self._watching = asyncio.get_running_loop().create_task(self._watch(listener))

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
            self._watching = None

    async def _watch(self, listener: Listener) -> None:
        while True:
            await asyncio.sleep(self._reload)
            self.trust.refresh()
            listener.recheck(self._accepted, self._permitted)

    def _permitted(self, member: str) -> bool:
        try:
            self.trust.permit(PeerId(member))
        except Refused:
            return False
        return True

    def _accepted(self, certificate: Certificate) -> bool:
        try:
            self.trust.check(certificate)
        except Refused:
            return False
        return True
