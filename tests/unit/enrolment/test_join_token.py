"""The token survives mail programs, and a typing error is told apart from a token that is wrong."""

from __future__ import annotations

import base64
import hashlib
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfl_node.enrolment.join_token import CHECKSUM, JoinToken, new_secret
from pfl_node.errors import ConfigError

WORDS = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=20)
PORTS = st.integers(1, 65535)


def _word(data: bytes) -> str:
    """With a right length and checksum, so that the fields are read."""
    framed = b"\x01" + (len(data) + CHECKSUM).to_bytes(2) + data
    framed += hashlib.sha256(framed).digest()[:CHECKSUM]
    return "pfl" + base64.b32encode(framed).decode().rstrip("=").lower()


def token(**given: object) -> JoinToken:
    fields = {
        "name": "east",
        "run": "wards",
        "enrol": "192.0.2.1:7947",
        "seeds": ("192.0.2.1:7946",),
        "authority": bytes(range(16)),
        "plan": bytes(range(16, 32)),
        "expires": 1_800_000_000,
        "secret": bytes(range(32, 48)),
    }
    return JoinToken(**{**fields, **given})  # type: ignore[arg-type]


@given(WORDS, WORDS, PORTS, st.lists(PORTS, min_size=1, max_size=8), st.binary(min_size=16, max_size=16))
def test_what_is_encoded_is_decoded(name: str, run: str, enrol: int, seeds: list[int], secret: bytes) -> None:
    made = token(
        name=name,
        run=run,
        enrol=f"a.example:{enrol}",
        seeds=tuple(f"[2001:db8::1]:{port}" for port in seeds),
        secret=secret,
    )
    assert JoinToken.decode(made.encode()) == made


@given(st.one_of(st.text(max_size=300), st.binary(min_size=30, max_size=200).map(_word)))
def test_whatever_is_typed_is_a_token_or_one_line(text: str) -> None:
    with suppress(ConfigError):
        JoinToken.decode(text)


def test_a_token_is_one_short_word_and_mail_may_wrap_or_capitalize_it() -> None:
    word = token().encode()
    assert word.isalnum()
    assert len(word) <= 150
    wrapped = f"{word[:60].upper()}\r\n{word[60:]} \n"
    assert JoinToken.decode(wrapped) == token()
    assert JoinToken.decode(f"  pfl-node join {wrapped}") == token()


def test_every_single_typing_error_is_found() -> None:
    word = token().encode()
    for at in range(3, len(word) - 1):  # the last letter has bits that mean nothing
        wrong = "a" if word[at] != "a" else "b"
        with pytest.raises(ConfigError, match=r"typing error|not complete"):
            JoinToken.decode(word[:at] + wrong + word[at + 1 :])


def test_two_letters_that_changed_places_are_found() -> None:
    word = token().encode()
    for at in range(3, len(word) - 2):
        swapped = word[:at] + word[at + 1] + word[at] + word[at + 2 :]
        if swapped != word:
            with pytest.raises(ConfigError, match=r"typing error|not complete"):
                JoinToken.decode(swapped)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "this is not a join token, which starts with 'pfl'"),
        ("hello", "this is not a join token"),
        ("192.0.2.1:7946", "this is not a join token"),
        (token().encode()[:-30], "the token is not complete, 7.% of it is here"),
        (token().encode() + "aaaaaaaa", "the token has a typing error"),
        (token().encode().replace(token().encode()[20], "ß"), "the token has a typing error"),
    ],
)
def test_each_mistake_is_told(text: str, line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        JoinToken.decode(text)


def test_a_token_of_a_later_release_is_no_typing_error() -> None:
    data = base64.b32decode(_padded(token().encode().removeprefix("pfl").upper()))
    later = bytes((2,)) + data[1:-CHECKSUM]
    later += hashlib.sha256(later).digest()[:CHECKSUM]
    with pytest.raises(ConfigError, match="of version 2, and this pfl-node reads version 1: install the release"):
        JoinToken.decode("pfl" + base64.b32encode(later).decode().rstrip("=").lower())


def test_a_name_that_could_hide_something_is_not_accepted() -> None:
    with pytest.raises(ConfigError, match="the token cannot be used"):
        JoinToken.decode(token(name="ea\x1b[2Kst").encode())


def test_a_token_without_a_seed_or_with_a_bad_address_is_not_accepted() -> None:
    with pytest.raises(ConfigError, match="the token cannot be used"):
        JoinToken.decode(token(enrol="nowhere").encode())


def test_no_two_secrets_are_equal() -> None:
    assert len({new_secret() for _ in range(100)}) == 100


def _padded(word: str) -> str:
    return word + "=" * (-len(word) % 8)
