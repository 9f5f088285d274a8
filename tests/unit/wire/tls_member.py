"""A member whose membership calls use TLS."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

from pfl_node.membership.member import Member
from pfl_node.membership.service import Membership
from pfl_node.membership.swim_config import SwimConfig
from pfl_node.wire.endpoint import Endpoint
from pfl_node.wire.membership_service import attach_membership
from pfl_node.wire.tls import Tls
from tests.unit.membership.local_swarm import QUICK

AUTO = SwimConfig(**{name: getattr(QUICK, name) for name in ("probe_interval", "probe_timeout")}, transport="auto")


@asynccontextmanager
async def tls_member(tls: Tls, *seeds: str) -> AsyncIterator[Membership]:
    endpoint = Endpoint(tls=tls)
    membership = attach_membership(endpoint, Member(tls.id, "ann"), AUTO, rng=Random(0), dialer=tls.dialer)
    await endpoint.bind("127.0.0.1:0", membership.bind)
    await endpoint.start()
    try:
        await membership.start(seeds, advertise=endpoint.address)
        yield membership
    finally:
        await membership.close()
        await endpoint.stop(0)
