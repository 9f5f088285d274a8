"""The limits of one site at a relay, and the requests that open connections. Pure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfl_node.address import parse_relayed, relayed_address
from pfl_node.wire.http_connect import END, ConnectRequest, parse_request
from pfl_node.wire.relay.relay_limits import A_DAY, RelayLimits, SiteUse


def test_a_site_waits_for_as_long_as_its_bandwidth_needs() -> None:
    use = SiteUse(RelayLimits(bandwidth=1000), since=0.0)
    assert use.move(1000, 1.0) == 0.0  # a second's worth at once
    assert use.move(500, 1.0) == pytest.approx(0.5)
    assert use.move(500, 2.0) == 0.0
    assert use.bytes == 2000


@given(st.lists(st.tuples(st.integers(0, 1 << 20), st.floats(0, 2)), max_size=50))
def test_the_bandwidth_is_kept_whatever_arrives_when(moves: list[tuple[int, float]]) -> None:
    rate, now = 1e5, 1.0
    use = SiteUse(RelayLimits(bandwidth=rate), since=0.0)
    for size, pause in moves:
        now += pause
        now += use.move(size, now)
        assert use.bytes <= rate * (now + 1e-6)


def test_the_bytes_of_a_day_are_counted_anew_on_the_next_day() -> None:
    use = SiteUse(RelayLimits(bytes_per_day=100), since=0.0)
    use.move(100, 1.0)
    assert use.exhausted(1.0)
    assert use.refusal("ann", 1.0) == "it has used its 100 bytes for today"
    assert use.refusal("ann", A_DAY) is None


def test_connections_are_counted_by_caller() -> None:
    use = SiteUse(RelayLimits(connections=3, per_caller=2), since=0.0)
    use.begin("ann")
    use.begin("ann")
    assert use.refusal("ann", 0.0) == "you have 2 connections to it already"
    use.begin("bob")
    assert use.refusal("carl", 0.0) == "it has 3 connections already"
    use.end("ann")
    assert use.refusal("ann", 0.0) is None
    assert (use.opened, dict(use.callers)) == (3, {"ann": 1, "bob": 1})


@given(
    st.from_regex(r"[0-9a-z.-]{1,80}:[0-9]{1,5}", fullmatch=True), st.from_regex(r"[!-~]{0,60}", fullmatch=True)
)
def test_a_request_is_read_as_it_was_written(target: str, authorization: str) -> None:
    request = ConnectRequest(target, authorization)
    assert parse_request(request.encode()) == request


@given(st.binary(max_size=200) | st.binary(max_size=200).map(lambda data: b"CONNECT " + data + END))
def test_no_bytes_make_the_parser_fail(data: bytes) -> None:
    request = parse_request(data)
    assert request is None or data.startswith(b"CONNECT ")


def test_a_request_with_more_than_its_head_is_none() -> None:
    whole = ConnectRequest("a.relay:443", "Bearer 1").encode()
    assert parse_request(whole + b"x") is None
    assert parse_request(whole[:-1]) is None


def test_the_address_of_a_relayed_member_names_its_relays() -> None:
    address = relayed_address(["192.0.2.1:7000", "[2001:db8::1]:7000"], "ann")
    assert parse_relayed(address) == (("192.0.2.1:7000", "[2001:db8::1]:7000"), "ann")
    assert parse_relayed("192.0.2.1:7000") is None
