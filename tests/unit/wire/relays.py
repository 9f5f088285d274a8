"""A relay, a site that is reached only through it, and a caller, over real connections on localhost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field

from pfl_node.address import relayed_address
from pfl_node.types import PeerId
from pfl_node.wire.client import PeerClient
from pfl_node.wire.connector import Connector
from pfl_node.wire.dialer import Dialer
from pfl_node.wire.endpoint import Endpoint
from pfl_node.wire.relay.relay_caller import RelayCaller
from pfl_node.wire.relay.relay_limits import RelayLimits
from pfl_node.wire.relay.relay_service import attach_relay
from pfl_node.wire.relay.relayed_site import RelayedSite
from pfl_node.wire.relay.rendezvous import Rendezvous
from pfl_node.wire.server import PeerService
from pfl_node.wire.tls import Tls
from tests.unit.wire.small_host import FakeHost, calling


@dataclass
class RunningRelay:
    endpoint: Endpoint
    rendezvous: Rendezvous
    tls: Tls | None = None

    @property
    def address(self) -> str:
        return self.endpoint.address

    async def kill(self) -> None:
        """As if its process had ended: every connection is closed at once."""
        self.rendezvous.close()
        await self.endpoint.stop(grace=0)


@dataclass
class RunningSite:
    id: PeerId
    endpoint: Endpoint
    host: FakeHost
    relays: tuple[str, ...] = ()
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def changed(self, relays: tuple[str, ...]) -> None:
        self.relays = relays
        self.news.set()

    async def registered(self, count: int) -> None:
        async with asyncio.timeout(10):
            while len(self.relays) != count:
                self.news.clear()
                await self.news.wait()

    def at(self, relays: Sequence[RunningRelay]) -> str:
        return relayed_address([relay.address for relay in relays], self.id)


@asynccontextmanager
async def a_relay(
    tls: Tls | None = None, limits: RelayLimits | None = None, members: Sequence[str] = ()
) -> AsyncIterator[RunningRelay]:
    endpoint = Endpoint(tls=tls)
    relay = RunningRelay(endpoint, attach_relay(endpoint, lambda member: member in members, limits), tls)
    await endpoint.bind("127.0.0.1:0")
    await endpoint.start()
    try:
        yield relay
    finally:
        with suppress(OSError):
            await relay.kill()


@asynccontextmanager
async def a_site(
    host: FakeHost, relays: Sequence[RunningRelay], tls: Tls | None = None, connector: Connector | None = None
) -> AsyncIterator[RunningSite]:
    """Registered at all of them. Its own port refuses connections: it is reached through relays only."""
    endpoint = Endpoint(tls=tls)
    PeerService(host, status=host.status).attach(endpoint)
    await endpoint.bind("127.0.0.1:0")
    await endpoint.start()
    endpoint.listener.refuse_new()
    host.me = tls.id if tls else host.me
    site = RunningSite(host.me, endpoint, host)
    dialer = tls.dialer if tls else Dialer()
    kept = RelayedSite(
        site.id,
        dialer=dialer,
        connector=connector or Connector(),
        listener=endpoint.listener,
        candidates=lambda: [relay.address for relay in relays],
        changed=site.changed,
    )
    kept.start()
    try:
        await site.registered(len(relays))
        yield site
    finally:
        await kept.close()
        await endpoint.stop(grace=0)


@asynccontextmanager
async def a_caller(tls: Tls | None = None, me: PeerId | None = None) -> AsyncIterator[PeerClient]:
    dialer = tls.dialer if tls else Dialer()
    who = tls.id if tls else me or PeerId("ann")
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(calling(me=who, dialer=dialer))
        dialer.paths.relays = RelayCaller(who, dialer, dialer.paths.connector)
        stack.push_async_callback(dialer.paths.close)
        yield client


class Eavesdropper:
    """A TCP forwarder that keeps a copy of all bytes."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.seen = bytearray()
        self.address = ""
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Eavesdropper:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.address = f"{host}:{port}"
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._server
        self._server.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self.target.rpartition(":")
        there, here = await asyncio.open_connection(host, int(port))
        await asyncio.gather(self._copy(reader, here), self._copy(there, writer))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                self.seen += data
                writer.write(data)
                await writer.drain()
            writer.close()
