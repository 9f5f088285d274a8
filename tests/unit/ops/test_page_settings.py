"""Where a page may be served, and to whom."""

from __future__ import annotations

import pytest

from pfl_node.daemon.preflight import check_page
from pfl_node.errors import ConfigError
from pfl_node.settings import Settings

TOKEN = "a-token-of-sixteen-and-more"


def check(listen: str | None, token: str | None = None) -> None:
    check_page(Settings.model_validate({"http": {"listen": listen, "token": token}}))


def test_loopback_needs_no_token_and_another_address_with_one_is_fine() -> None:
    for listen in (None, "127.0.0.1:0", "localhost:8100", "[::1]:8100"):
        check(listen)
    check("0.0.0.0:8100", TOKEN)


def test_a_page_for_others_needs_a_token_and_the_line_says_how_to_give_one() -> None:
    with pytest.raises(
        ConfigError, match=r"http '0.0.0.0:8100' is not loopback: .*PFL_HTTP__TOKEN or --http-token"
    ):
        check("0.0.0.0:8100")


def test_where_unencrypted_connections_are_allowed_the_page_needs_no_token() -> None:
    """It then answers only to the names of this machine."""
    check_page(Settings.model_validate({"insecure": True, "http": {"listen": "0.0.0.0:8100"}}))


def test_a_short_token_is_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigError, match="at least 16 characters") as caught:
        check("127.0.0.1:8100", "hunter2")
    assert "hunter2" not in str(caught.value)


def test_what_is_no_address_is_said_so() -> None:
    with pytest.raises(ConfigError, match="http '8100' must be HOST:PORT"):
        check("8100")
