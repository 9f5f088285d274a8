"""HOST:PORT is read without looking anything up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfl_node.address import is_loopback, is_wildcard, parse_address
from pfl_node.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:7000", "127.0.0.1", 7000),
        ("[::1]:7000", "::1", 7000),
        ("node-1.ward_3.example:1", "node-1.ward_3.example", 1),
        ("localhost:65535", "localhost", 65535),
    ],
)
def test_good_ones(text: str, host: str, port: int) -> None:
    assert parse_address(text) == (host, port)


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":",
        "a",
        ":7000",
        "a:",
        "a:b",
        "a:-1",
        "a:1.5",
        "a:٣",
        "a:0",
        "::1:7000",
        "[::1]",
        "[a]:1",
        "-a:1",
        "a b:1",
        "a/b:1",
    ],
)
def test_bad_ones_are_one_line_that_repeats_them(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_address(text, what="peer_seed")
    assert str(caught.value).startswith(f"peer_seed {text!r}")
    assert "\n" not in str(caught.value)


def test_port_0_only_where_any_will_do() -> None:
    assert parse_address("a:0", any_port=True) == ("a", 0)


@given(st.text())
def test_whatever_is_written_is_an_address_or_a_config_error(text: str) -> None:
    try:
        host, port = parse_address(text)
    except ConfigError:
        return
    assert host
    assert 1 <= port <= 65535


def test_loopback_is_told_by_the_name_alone() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.8.9.1", "::1", "localhost", "LOCALHOST.")))
    assert not any(map(is_loopback, ("0.0.0.0", "10.0.0.1", "localhost.example", "node1", "::")))


def test_the_wildcards() -> None:
    assert all(map(is_wildcard, ("0.0.0.0", "::")))
    assert not any(map(is_wildcard, ("127.0.0.1", "localhost")))
