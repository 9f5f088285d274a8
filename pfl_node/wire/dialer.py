"""Opens channels, plain or with TLS. With TLS the peer's identity is verified before the first call."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import grpc

from pfl_node.errors import PeerError, PeerGone, Reason, Refused
from pfl_node.security.certificate import Certificate
from pfl_node.security.handshake import read_certificate
from pfl_node.security.trust import Trust
from pfl_node.types import PeerId
from pfl_node.wire.endpoint import channel_options
from pfl_node.wire.forwarder import Forwarder
from pfl_node.wire.paths import Path, Paths

TRIES = 2


@dataclass(slots=True)
class Link:
    """A channel and, with TLS, the certificate of its peer."""

    channel: Any  # grpc.aio.Channel, whose published types have no calls with bytes
    certificate: Certificate | None = None
    generation: int = 0  # generation of our own certificate
    forwarder: Forwarder | None = None  # opens the connections of the channel

    @property
    def peer(self) -> PeerId | None:
        return self.certificate.id if self.certificate else None

    async def close(self) -> None:
        await self.channel.close()
        if self.forwarder is not None:
            self.forwarder.close()


class Dialer:
    """Plain connections. gRPC connects on the first call and reconnects by itself."""

    secure = False

    def __init__(self, paths: Paths | None = None) -> None:
        self.paths = paths or Paths()

    async def dial(self, address: str, connect_timeout: float, expect: PeerId | None = None) -> Link:  # noqa: ARG002
        target, forwarder = _target(address, self.paths.to(address))
        return Link(
            grpc.aio.insecure_channel(target, options=channel_options(connect_timeout)), forwarder=forwarder
        )

    def usable(self, link: Link) -> bool:  # noqa: ARG002
        """If False, new calls need a new channel; calls in progress may finish."""
        return True

    def connected(self, link: Link) -> bool:
        return bool(link.channel.get_state() is grpc.ChannelConnectivity.READY)

    async def connect(self, link: Link, peer: PeerId, connect_timeout: float) -> None:
        """Wait for the connection; raises PeerGone and closes the channel."""
        if not self.connected(link) and not await _connected(link.channel, connect_timeout):
            refused = link.channel.get_state() is grpc.ChannelConnectivity.TRANSIENT_FAILURE
            await link.close()
            what = "nothing answers there" if refused else f"no connection within {connect_timeout:g} s"
            raise PeerGone(peer, what)

    def permit(self, link: Link) -> None:
        """Raises Refused if the peer may not be called any more."""


class TlsDialer(Dialer):
    """Reads and checks the peer's certificate, then opens a channel that trusts this certificate alone. So the
    peer of the channel owns that key; a peer with a new certificate is checked again."""

    secure = True

    def __init__(self, trust: Trust, paths: Paths | None = None) -> None:
        super().__init__(paths)
        self.trust = trust

    async def dial(self, address: str, connect_timeout: float, expect: PeerId | None = None) -> Link:
        """A connected channel. Tries twice: the peer may renew its certificate after the check."""
        path = self.paths.to(address)
        expect = expect or PeerId(path.site if path else "") or None
        peer = expect or PeerId(address)
        try:
            if expect:
                self.trust.permit(expect)
            for left in reversed(range(TRIES)):
                link = await self._verified(address, path, connect_timeout, expect, retry=left > 0)
                if link is None:
                    continue
                if await _connected(link.channel, connect_timeout):
                    return link
                await link.close()
        except Refused as refused:
            raise Refused(refused.reason, refused.text, peer) from refused
        except PeerError as gone:
            raise type(gone)(peer, gone.text) from gone
        raise PeerGone(peer, f"no connection within {connect_timeout:g} s")

    async def _verified(
        self, address: str, path: Path | None, connect_timeout: float, expect: PeerId | None, *, retry: bool
    ) -> Link | None:
        """None, with `retry`: a relay led to another node, and the next one should be tried."""
        generation, mine = self.trust.generation, self.trust.credentials
        theirs = await read_certificate(address, mine, connect_timeout, path.connect if path else None)
        if expect and theirs.id != expect:
            if path and path.site:
                path.deprioritize()
                if retry:
                    return None
            raise Refused(Reason.IMPOSTOR, f"{theirs.id} answers at {address}")
        self.trust.check(theirs)
        credentials = grpc.ssl_channel_credentials(theirs.pem, mine.key, mine.chain)
        name = next(iter(theirs.names), theirs.subject)
        options = [*channel_options(connect_timeout), ("grpc.ssl_target_name_override", name)]
        target, forwarder = _target(address, path)
        channel = grpc.aio.secure_channel(target, credentials, options=options)
        return Link(channel, theirs, generation, forwarder)

    def usable(self, link: Link) -> bool:
        if link.generation != self.trust.generation or link.certificate is None or link.certificate.expired():
            return False
        return self.connected(link)

    def permit(self, link: Link) -> None:
        if link.peer is not None:
            self.trust.permit(link.peer)


def _target(address: str, path: Path | None) -> tuple[str, Forwarder | None]:
    """The target that gRPC dials."""
    if path is None:
        return address, None
    forwarder = Forwarder(path.connect)
    return forwarder.target, forwarder


async def _connected(channel: Any, timeout: float) -> bool:
    """Connect; False if the first attempt fails."""
    state = channel.get_state(try_to_connect=True)
    try:
        async with asyncio.timeout(timeout):
            while state not in (grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.TRANSIENT_FAILURE):
                await channel.wait_for_state_change(state)
                state = channel.get_state(try_to_connect=True)
    except TimeoutError:
        return False
    return bool(state is grpc.ChannelConnectivity.READY)
