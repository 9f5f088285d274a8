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

TRIES = 2


@dataclass(slots=True)
class Link:
    """A channel and, with TLS, the certificate of its peer."""

    channel: Any  # grpc.aio.Channel, whose published types have no calls with bytes
    certificate: Certificate | None = None
    generation: int = 0  # of our own certificate

    @property
    def peer(self) -> PeerId | None:
        return self.certificate.id if self.certificate else None


class Dialer:
    """Plain connections. gRPC connects on the first call and reconnects by itself."""

    secure = False

    async def dial(self, address: str, connect_timeout: float, expect: PeerId | None = None) -> Link:  # noqa: ARG002
        return Link(grpc.aio.insecure_channel(address, options=channel_options(connect_timeout)))

    def usable(self, link: Link) -> bool:  # noqa: ARG002
        """If False, new calls need a new channel; calls in progress may finish."""
        return True

    def permit(self, link: Link) -> None:
        """Raises Refused if the peer may not be called any more."""


class TlsDialer(Dialer):
    """Reads and checks the peer's certificate, then opens a channel that trusts this certificate alone. So the
    peer of the channel owns that key; a peer with a new certificate is checked again."""

    secure = True

    def __init__(self, trust: Trust) -> None:
        self.trust = trust

    async def dial(self, address: str, connect_timeout: float, expect: PeerId | None = None) -> Link:
        """A connected channel. Tries twice: the peer may renew its certificate after the check."""
        peer = expect or PeerId(address)
        try:
            if expect:
                self.trust.permit(expect)
            for _ in range(TRIES):
                link = await self._verified(address, connect_timeout, expect)
                if await _connected(link.channel, connect_timeout):
                    return link
                await link.channel.close()
        except Refused as refused:
            raise Refused(refused.reason, refused.text, peer) from refused
        except PeerError as gone:
            raise type(gone)(peer, gone.text) from gone
        raise PeerGone(peer, f"no connection within {connect_timeout:g} s")

    async def _verified(self, address: str, connect_timeout: float, expect: PeerId | None) -> Link:
        generation, mine = self.trust.generation, self.trust.credentials
        theirs = await read_certificate(address, mine, connect_timeout)
        if expect and theirs.id != expect:
            raise Refused(Reason.IMPOSTOR, f"{theirs.id} answers at {address}")
        self.trust.check(theirs)
        credentials = grpc.ssl_channel_credentials(theirs.pem, mine.key, mine.chain)
        name = next(iter(theirs.names), theirs.subject)
        options = [*channel_options(connect_timeout), ("grpc.ssl_target_name_override", name)]
        return Link(grpc.aio.secure_channel(address, credentials, options=options), theirs, generation)

    def usable(self, link: Link) -> bool:
        if link.generation != self.trust.generation or link.certificate is None or link.certificate.expired():
            return False
        return bool(link.channel.get_state() is grpc.ChannelConnectivity.READY)

    def permit(self, link: Link) -> None:
        if link.peer is not None:
            self.trust.permit(link.peer)


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
