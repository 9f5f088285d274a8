"""What others dial."""

from __future__ import annotations

import asyncio
import socket

import pytest

from pfl_node.daemon.advertise import advertised_address
from pfl_node.errors import ConfigError


def ask(advertise: str | None, host: str, seeds: tuple[str, ...] = (), patience: float = 0.0) -> str:
    return asyncio.run(advertised_address(advertise, host, 7946, seeds, patience=patience))


def test_what_the_user_says_wins_and_port_0_is_the_bound_one() -> None:
    assert ask("node1:7", "0.0.0.0", ("127.0.0.1:1",)) == "node1:7"
    assert ask("node1:0", "127.0.0.1") == "node1:7946"


def test_without_a_word_it_is_the_bound_address() -> None:
    assert ask(None, "10.1.2.3") == "10.1.2.3:7946"


def test_bound_everywhere_it_is_the_address_on_the_way_to_a_seed() -> None:
    assert ask(None, "0.0.0.0", ("127.0.0.1:1",)) == "127.0.0.1:7946"
    assert ask(None, "0.0.0.0", ("localhost:1",)) == "127.0.0.1:7946"


@pytest.mark.skipif(not socket.has_ipv6, reason="this machine has no IPv6")
def test_bound_everywhere_in_both_families_either_will_do() -> None:
    assert ask(None, "::", ("[::1]:1",)) == "[::1]:7946"
    assert ask(None, "::", ("127.0.0.1:1",)) == "127.0.0.1:7946"


def test_the_first_seed_that_is_known_decides() -> None:
    assert ask(None, "0.0.0.0", ("no-such-host.invalid:1", "127.0.0.1:1")) == "127.0.0.1:7946"


def test_no_way_to_any_seed_is_one_line_that_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"^there is no route to no-such-host.invalid:1, .*--advertise HOST"):
        ask(None, "0.0.0.0", ("no-such-host.invalid:1",))
