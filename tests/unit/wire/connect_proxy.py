"""A small HTTP proxy that only does CONNECT, with a password if wanted."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from contextlib import suppress

from pfl_node.wire.connector import Connector, Proxy

END = b"\r\n\r\n"


class ConnectProxy:
    def __init__(self, password: str = "") -> None:
        self.targets: list[str] = []
        self.address = ""
        self._expected = f"Basic {b64encode(password.encode()).decode()}" if password else ""
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> ConnectProxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.address = f"{host}:{port}"
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._server
        self._server.close()
        for writer in self._open:
            writer.transport.abort()

    def connector(self, authorization: str = "") -> Connector:
        """Uses the proxy for loopback, too."""
        return Connector(Proxy(self.address, authorization, lambda host: False))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        with suppress(OSError, asyncio.IncompleteReadError):
            first, *fields = (await reader.readuntil(END)).decode().strip().split("\r\n")
            if self._expected and f"Proxy-Authorization: {self._expected}" not in fields:
                writer.write(b"HTTP/1.1 407 Proxy Authentication Required" + END)
                writer.close()
                return
            target = first.split()[1]
            self.targets.append(target)
            host, _, port = target.rpartition(":")
            there, here = await asyncio.open_connection(host, int(port))
            self._open.add(here)
            writer.write(b"HTTP/1.1 200 OK\r\nVia: a test" + END)
            await asyncio.gather(self._copy(reader, here), self._copy(there, writer))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()
