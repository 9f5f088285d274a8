"""What TLS adds to a node: whom it trusts, its door, its way to others, and a look at the files now and then."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from pfl_node.security.files import TlsFiles
from pfl_node.security.passport import Passport
from pfl_node.security.start import prepare
from pfl_node.security.trust import Trust
from pfl_node.types import PeerId
from pfl_node.wire.dial import TlsDialer
from pfl_node.wire.door import Door


class Tls:
    """One for each node. `watch` from its start to `close`."""

    def __init__(self, files: TlsFiles, *, reload: float = 1.0, name: str = "") -> None:
        prepare(files, name)
        self.trust = Trust(files)
        self.door = Door(self.trust)
        self.dialer = TlsDialer(self.trust)
        self._reload = reload
        self._watching: asyncio.Task[None] | None = None

    @property
    def id(self) -> PeerId:
        return self.trust.me

    def credentials(self) -> Any:
        """Of a server. A new certificate is shown to the next connection; open ones go on with the old one."""
        shown = self.trust.passport

        def fetch() -> Any:
            nonlocal shown
            if self.trust.passport is shown:
                return None
            shown = self.trust.passport
            return _configuration(shown)

        return grpc.dynamic_ssl_server_credentials(_configuration(shown), fetch, True)

    def watch(self) -> None:
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
            self._watching = None

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._reload)
            self.trust.refresh()


def _configuration(passport: Passport) -> Any:
    return grpc.ssl_server_certificate_configuration([(passport.key, passport.chain)], passport.roots)
