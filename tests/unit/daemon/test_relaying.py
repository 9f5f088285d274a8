"""When a node is reached through relays, which ones it uses, and what its record says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

import pytest

from pfl_node.daemon.relaying import Relaying
from pfl_node.errors import ConfigError
from pfl_node.membership.member import Member, Reachability
from pfl_node.membership.service import Membership
from pfl_node.settings import NetworkSettings, RelaySettings, Settings
from pfl_node.types import PeerId
from pfl_node.wire.connector import Connector, Proxy
from pfl_node.wire.dialer import Dialer
from pfl_node.wire.endpoint import Endpoint
from pfl_node.wire.membership_service import attach_membership
from pfl_node.wire.paths import Paths

DIRECT, RELAYED, UNREACHABLE, UNKNOWN = (
    Reachability.DIRECT,
    Reachability.RELAYED,
    Reachability.UNREACHABLE,
    Reachability.UNKNOWN,
)
RELAY = "192.0.2.1:7000"


def inside(check: Callable[[Relaying, Membership], None], settings: Settings, proxy: Proxy | None = None) -> None:
    """Run a check in an event loop, with a node that has opened no port."""

    async def scenario() -> None:
        dialer, endpoint = Dialer(Paths(Connector(proxy))), Endpoint()
        me = Member("ann", "ann", address="192.0.2.9:7000")
        membership = attach_membership(endpoint, me, settings.membership, rng=Random(0), dialer=dialer)
        relaying = Relaying(
            settings,
            PeerId("ann"),
            dialer=dialer,
            endpoint=endpoint,
            membership=membership,
            changed=lambda: None,
        )
        check(relaying, membership)
        await relaying.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("reach", "proxied", "found", "registered", "record"),
    [
        ("auto", False, DIRECT, True, DIRECT),
        ("auto", False, UNREACHABLE, True, RELAYED),
        ("auto", False, UNREACHABLE, False, UNREACHABLE),
        ("auto", False, UNKNOWN, False, UNKNOWN),
        ("auto", True, UNKNOWN, False, UNREACHABLE),
        ("auto", True, UNKNOWN, True, RELAYED),
        ("relay", False, DIRECT, True, RELAYED),
        ("relay", False, UNKNOWN, False, UNREACHABLE),
        ("direct", False, UNREACHABLE, False, UNREACHABLE),
    ],
)
def test_the_record_says_how_others_connect(
    reach: str, proxied: bool, found: Reachability, registered: bool, record: Reachability
) -> None:
    def check(relaying: Relaying, _: Membership) -> None:
        relaying.relays = (RELAY,) if registered else ()
        state, relays = relaying.stated(found)
        assert (state, relays) == (record, (RELAY,) if record is RELAYED else ())

    settings = Settings(network=NetworkSettings.model_validate({"reach": reach}))
    inside(check, settings, Proxy("192.0.2.2:3128") if proxied else None)


def test_relays_are_members_that_offer_themselves_and_can_be_dialled() -> None:
    def check(relaying: Relaying, membership: Membership) -> None:
        offers = [
            Member("a", "a", "192.0.2.1:1", offers_relay=True, reachability=DIRECT),
            Member("b", "b", "192.0.2.2:1", offers_relay=True, reachability=UNREACHABLE),
            Member("c", "c", "192.0.2.3:1", reachability=DIRECT),
            Member("d", "d", "192.0.2.4:1", offers_relay=True, role="bootstrap"),
        ]
        membership.swim.start(0.0)
        membership.swim.merge(offers, 0.0, by="a", joining=True)
        assert set(relaying.candidates()) == {"192.0.2.1:1", "192.0.2.4:1"}
        assert relaying.candidates() == relaying.candidates()

    inside(check, Settings())


def test_configured_relays_are_used_instead() -> None:
    inside(
        lambda relaying, _: _equal(relaying.candidates(), (RELAY,)),
        Settings(network=NetworkSettings(relays=(RELAY,))),
    )


def test_only_a_node_that_serves_is_a_relay() -> None:
    inside(lambda relaying, _: _equal(relaying.rendezvous, None), Settings())
    limits = RelaySettings(serve=True, sites=3, bandwidth=1e6, bytes_per_day=10)

    def check(relaying: Relaying, _: Membership) -> None:
        assert relaying.rendezvous
        of = relaying.rendezvous.limits
        assert (of.sites, of.bandwidth, of.bytes_per_day) == (3, 1e6, 10)

    inside(check, Settings(relay=limits))


def test_bad_network_settings_are_found_before_the_start() -> None:
    from pfl_node.daemon.network_setup import check_network

    for wrong in ({"proxy": "ftp://x"}, {"relays": ("nowhere",)}, {"proxy": "x:1", "proxy_credentials": "/none"}):
        with pytest.raises(ConfigError, match=r"network\."):
            check_network(Settings(network=NetworkSettings.model_validate(wrong)))


def _equal(found: object, expected: object) -> None:
    assert found == expected
