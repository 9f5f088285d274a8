"""Channels to others, plain or with TLS; with TLS it is known who answers before a call's first byte leaves."""

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
    """A channel, and who is at its other end; None: nobody can know."""

    channel: Any  # grpc.aio.Channel, whose published types know no calls with bytes
    shown: Certificate | None = None
    generation: int = 0  # of my own certificate

    @property
    def peer(self) -> PeerId | None:
        return self.shown.id if self.shown else None


class Dialer:
    """Plain connections. A channel connects by itself, and again when it was broken."""

    secure = False

    async def dial(self, address: str, connect_timeout: float, expect: PeerId | None = None) -> Link:  # noqa: ARG002
        return self.plain(address, connect_timeout)

    def plain(self, address: str, connect_timeout: float) -> Link:
        return Link(grpc.aio.insecure_channel(address, options=channel_options(connect_timeout)))

    def usable(self, link: Link) -> bool:  # noqa: ARG002
        """False: dial anew, but let the calls under way end."""
        return True

    def permit(self, link: Link) -> None:
        """May it still be called? Raises Refused."""


class TlsDialer(Dialer):
    """The certificate that was seen and checked is the only one that the channel then believes. So its other end
    is the holder of that key; a peer with a new certificate is looked at again."""

    secure = True

    def __init__(self, trust: Trust) -> None:
        self.trust = trust

    async def dial(self, address: str, connect_timeout: float, expect: PeerId | None = None) -> Link:
        """Connected. It is tried twice: a new certificate may come between the look and the connection."""
        who = expect or PeerId(address)
        try:
            if expect:
                self.trust.permit(expect)
            for _ in range(TRIES):
                link = await self._look(address, connect_timeout, expect)
                if await _ready(link.channel, connect_timeout):
                    return link
                await link.channel.close()
        except Refused as refused:
            raise Refused(refused.reason, refused.text, who) from refused
        except PeerError as gone:
            raise type(gone)(who, gone.text) from gone
        raise PeerGone(who, f"no connection within {connect_timeout:g} s")

    async def _look(self, address: str, connect_timeout: float, expect: PeerId | None) -> Link:
        generation, passport = self.trust.generation, self.trust.passport
        shown = await read_certificate(address, passport, connect_timeout)
        if expect and shown.id != expect:
            raise Refused(Reason.IMPOSTOR, f"{shown.id} answers at {address}")
        self.trust.check(shown)
        credentials = grpc.ssl_channel_credentials(shown.pem, passport.key, passport.chain)
        name = next(iter(shown.names), shown.subject)
        options = [*channel_options(connect_timeout), ("grpc.ssl_target_name_override", name)]
        return Link(grpc.aio.secure_channel(address, credentials, options=options), shown, generation)

    def usable(self, link: Link) -> bool:
        if link.generation != self.trust.generation or link.shown is None or link.shown.expired():
            return False
        return bool(link.channel.get_state() is grpc.ChannelConnectivity.READY)

    def permit(self, link: Link) -> None:
        if link.shown is not None:
            self.trust.permit(link.shown.id)


async def _ready(channel: Any, timeout: float) -> bool:
    """Is it connected? Not, when the first attempt failed."""
    state = channel.get_state(try_to_connect=True)
    try:
        async with asyncio.timeout(timeout):
            while state not in (grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.TRANSIENT_FAILURE):
                await channel.wait_for_state_change(state)
                state = channel.get_state(try_to_connect=True)
    except TimeoutError:
        return False
    return bool(state is grpc.ChannelConnectivity.READY)
