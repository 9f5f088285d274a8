from __future__ import annotations

import pytest

from pfl_node.enrolment.caller_limits import ALL, OPEN, PER_NETWORK, CallerLimits, network_of


def test_one_address_may_try_so_often_per_minute_and_others_are_not_affected() -> None:
    limits: CallerLimits[int] = CallerLimits()
    assert sum(limits.admit("192.0.2.9", 1.0) for _ in range(1000)) == PER_NETWORK
    assert limits.admit("192.0.2.10", 1.0)
    assert limits.admit("192.0.2.9", 62.0)


def test_all_addresses_together_are_limited() -> None:
    limits: CallerLimits[int] = CallerLimits()
    assert sum(limits.admit(f"10.0.{n // 250}.{n % 250}", 1.0) for n in range(5000)) == ALL


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("192.0.2.9", "192.0.2.9"),
        ("::ffff:192.0.2.9", "192.0.2.9"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::ffff:1", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_addresses_that_one_caller_can_have_count_as_one(host: str, network: str) -> None:
    assert network_of(host) == network


def test_the_oldest_connection_of_the_busiest_network_makes_room() -> None:
    limits: CallerLimits[int] = CallerLimits()
    assert [limits.add(n, "192.0.2.9") for n in range(OPEN // 2)] == [None] * (OPEN // 2)
    assert limits.add(100, "192.0.2.9") == 0
    for n in range(OPEN // 2):
        assert limits.add(200 + n, f"10.0.0.{n}") is None
    assert limits.add(300, "10.0.1.1") == 1
    assert len(limits) == OPEN
    limits.remove(300)
    assert limits.add(301, "10.0.1.2") is None
