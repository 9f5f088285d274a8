"""A member of a swarm with TLS that signs with its own key what other members should have signed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from pfl_node.membership import membership_pb2 as pb
from pfl_node.membership import packet_codec
from pfl_node.membership.member import Member
from pfl_node.membership.packet import Kind, Packet, Rumor
from pfl_node.membership.service import Membership
from pfl_node.membership.signatures import Signed
from pfl_node.membership.swim_config import SwimConfig
from pfl_node.security.identity_keys import IdentityKeys
from pfl_node.security.tls_files import TlsFiles
from pfl_node.types import PeerId
from pfl_node.wire.endpoint import Endpoint
from pfl_node.wire.membership_pb2_grpc import MembershipStub
from pfl_node.wire.membership_service import attach_membership
from pfl_node.wire.tls import Tls
from tests.identities import Site, fresh_id, pinned


class Directories:
    """Data directories of members that trust a CA, or that pin each other's ids."""

    def __init__(self, path: Path, names: Sequence[str], *, ca: bool) -> None:
        self.path = path
        self.ids: dict[str, PeerId] = {}
        site = Site(path) if ca else None
        for name in names:
            if site:
                site.member(name)
            self.ids[name] = fresh_id(path / name)
        if not ca:
            for name in names:
                pinned(path / name, allow=list(self.ids.values()))

    def tls(self, name: str) -> Tls:
        return Tls(TlsFiles.find(self.path / name))


class Forger:
    def __init__(self, tls: Tls, membership: Membership) -> None:
        self._tls = tls
        self.signed = Signed(IdentityKeys(tls.trust))
        self.membership = membership

    @property
    def me(self) -> Member:
        return self.membership.me

    def forge(self, record: Member, **changes: object) -> Member:
        """The record of another member with changes, signed with the forger's key."""
        return self.signed.sign(replace(record, **changes))  # type: ignore[arg-type]

    @asynccontextmanager
    async def stub(self, address: str) -> AsyncIterator[Any]:
        link = await self._tls.dialer.dial(address, 10.0)
        try:
            yield MembershipStub(link.channel)
        finally:
            await link.channel.close()

    async def sync(self, address: str, *members: Member) -> None:
        mine = packet_codec.to_wire(self.me)
        async with self.stub(address) as stub:
            await stub.Sync(pb.State(sender=mine, members=packet_codec.to_wires(members)), timeout=30)

    async def gossip(self, address: str, *members: Member) -> None:
        packet = Packet(Kind.GOSSIP, self.me, rumors=tuple(Rumor(m, m.id) for m in members))
        async with self.stub(address) as stub:
            await stub.Ping(packet_codec.pack(packet), timeout=30)

    async def tell(self, addresses: Iterable[str], *members: Member) -> None:
        """Both ways to spread a record, to several members."""
        for address in addresses:
            await self.sync(address, *members)
            await self.gossip(address, *members)

    async def view(self, address: str) -> dict[str, Member]:
        """The members that the node there lists."""
        async with self.stub(address) as stub:
            reply = await stub.List(pb.ListRequest(), timeout=30)
        return {member.id: member for member in packet_codec.from_wires(reply.members)}


@asynccontextmanager
async def forger(tls: Tls, seed: str) -> AsyncIterator[Forger]:
    """A real member that has joined through the seed and answers calls."""
    endpoint = Endpoint(tls=tls)
    me, config = Member(tls.id, "eve", incarnation=1), SwimConfig(transport="grpc")
    membership = attach_membership(endpoint, me, config, rng=Random(0), dialer=tls.dialer)
    await endpoint.bind("127.0.0.1:0", membership.bind)
    await endpoint.start()
    try:
        await membership.start([seed], advertise=endpoint.address)
        assert membership.joined
        yield Forger(tls, membership)
    finally:
        await membership.close()
        await endpoint.stop(0)
