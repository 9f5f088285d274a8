"""Opens connections to sites behind relays. It tries all relays of a site until one succeeds."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

import grpc

from pfl_node.address import parse_address
from pfl_node.errors import ConfigError, PeerError, PeerGone
from pfl_node.types import PeerId
from pfl_node.wire.channels import ChannelPool
from pfl_node.wire.connector import Connector
from pfl_node.wire.dialer import Dialer
from pfl_node.wire.http_connect import BEARER, SUFFIX, ConnectRequest, ask, read_answer
from pfl_node.wire.relay.rendezvous import Rendezvous
from pfl_node.wire.relay_pb2 import OpenRequest
from pfl_node.wire.relay_pb2_grpc import RelayStub
from pfl_node.wire.statuses import error_from_status

TIMEOUT = 5.0  # seconds for one relay
HEAD_START = 0.5  # seconds after which the next relay is tried, too
PENALTY = 30.0  # seconds for which a relay that failed is tried last
MOST = 3  # relays of one site
IDLE = 60.0
TABLE_LIMIT = 1024


class RelayCaller:
    def __init__(self, me: PeerId, dialer: Dialer, connector: Connector) -> None:
        self._me = me
        self._connector = connector
        self._pool = ChannelPool(dialer, RelayStub, idle=IDLE)
        self.own: tuple[str, Rendezvous] | None = None  # the address of this node's own relay
        self._failed: dict[tuple[str, str], float] = {}  # by relay and site: until when it is tried last

    async def connect(self, relays: Sequence[str], site: str) -> tuple[socket.socket, str]:
        """A connection to the site's listener, and the relay that it uses. Raises PeerGone or Refused."""
        order = sorted(relays[:MOST], key=lambda relay: self._failed.get((relay, site), 0.0) > _now())
        waiting = list(order)
        trying: dict[asyncio.Task[socket.socket], str] = {}
        failures: list[str] = []
        try:
            while waiting or trying:
                if waiting:
                    relay = waiting.pop(0)
                    trying[asyncio.create_task(self._through(relay, site))] = relay
                timeout = HEAD_START if waiting else None
                done, _ = await asyncio.wait(trying, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    relay = trying.pop(task)
                    if (error := task.exception()) is None:
                        return task.result(), relay
                    self.deprioritize(relay, site)
                    failures.append(f"{relay}: {error}")
        finally:
            for task in trying:
                task.add_done_callback(_close_unused)
                task.cancel()
        raise PeerGone(PeerId(site), f"no relay connects to it ({'; '.join(failures)})")

    def deprioritize(self, relay: str, site: str) -> None:
        """The relay failed, or led to another node: try the others first for a while."""
        if len(self._failed) >= TABLE_LIMIT:
            self._failed.clear()
        self._failed[relay, site] = _now() + PENALTY

    async def close(self) -> None:
        await self._pool.close()

    async def _through(self, relay: str, site: str) -> socket.socket:
        """Raises PeerGone, Refused or OSError."""
        try:
            parse_address(relay)
            async with asyncio.timeout(TIMEOUT):
                return await self._open(relay, site)
        except TimeoutError as error:
            raise PeerGone(PeerId(relay), f"no connection within {TIMEOUT:g} s") from error
        except ConfigError as error:
            raise PeerGone(PeerId(relay), str(error)) from error

    async def _open(self, relay: str, site: str) -> socket.socket:
        if self.own is not None and self.own[0] == relay:  # a router may not connect it to its own public address
            return await self._open_here(self.own[1], site)
        request = ConnectRequest(site + SUFFIX, BEARER + await self._ticket(relay, site))
        connection = await self._connector.connect(relay)
        try:
            await ask(connection, request)
        except BaseException:
            connection.close()
            raise
        return connection

    async def _open_here(self, rendezvous: Rendezvous, site: str) -> socket.socket:
        ticket = rendezvous.open(self._me, site)
        mine, its = socket.socketpair()
        try:
            for end in (mine, its):
                end.setblocking(False)
            rendezvous.arrive(ConnectRequest(site + SUFFIX, BEARER + ticket), its)
            await read_answer(mine)
        except BaseException:
            mine.close()
            raise
        return mine

    async def _ticket(self, relay: str, site: str) -> str:
        async with self._pool.channel(relay) as channel:
            try:
                reply = await channel.stub.Open(OpenRequest(caller=self._me, site=site), timeout=TIMEOUT)
            except grpc.aio.AioRpcError as error:
                if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                    self._pool.retire(channel)
                raise _text_only(error_from_status(error, PeerId(relay))) from error
        return str(reply.ticket)


def _text_only(error: PeerError) -> PeerGone:
    """A relay's refusal is not a refusal of the site, so only its text is used."""
    return PeerGone(error.peer, error.text)


def _close_unused(task: asyncio.Task[socket.socket]) -> None:
    """A second relay succeeded after all."""
    if not task.cancelled() and task.exception() is None:
        task.result().close()


def _now() -> float:
    return asyncio.get_running_loop().time()
