"""What our own reader says of a certificate is what the library says."""

from __future__ import annotations

from contextlib import suppress

import pytest
from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st

from pfl_node.security.certificate import ID, read_der, read_pem
from pfl_node.security.credentials import PINNED_ISSUER, PINNED_ISSUER_NAME
from pfl_node.security.x509_builder import (
    key_id,
    make_authority,
    make_certificate,
    make_own_certificate,
    make_pinned_issuer,
    new_key,
)

CA_KEY, KEY = new_key(), new_key()
CA = make_authority(CA_KEY, "the CA", 10)


@pytest.mark.parametrize("operator", [False, True])
def test_it_reads_what_the_library_wrote(operator: bool) -> None:
    pem = make_certificate(KEY.public_key(), CA, CA_KEY, name="ann", days=3, operator=operator)
    mine, theirs = read_pem(pem), x509.load_pem_x509_certificate(pem)
    assert mine.id == key_id(KEY)
    assert ID.fullmatch(mine.id)
    assert (mine.subject, mine.name, mine.issuer) == (key_id(KEY), "ann", "the CA")
    assert mine.serial == theirs.serial_number
    assert (mine.not_before, mine.not_after) == (theirs.not_valid_before_utc, theirs.not_valid_after_utc)
    names = theirs.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert list(mine.names) == names.get_values_for_type(x509.DNSName)
    assert (mine.operator, mine.alias) == (operator, None)
    assert read_pem(mine.pem) == mine


def test_the_first_of_a_chain_counts() -> None:
    leaf = make_certificate(KEY.public_key(), CA, CA_KEY, days=3)
    assert read_pem(leaf + CA).id == key_id(KEY)


def test_nobodys_certificate_is_the_one_that_was_made() -> None:
    shipped, made = read_pem(PINNED_ISSUER), read_pem(make_pinned_issuer())
    assert (shipped.id, shipped.subject, shipped.not_after) == (made.id, PINNED_ISSUER_NAME, made.not_after)
    own = read_pem(make_own_certificate(KEY))
    assert (own.id, own.issuer) == (key_id(KEY), PINNED_ISSUER_NAME)


@given(st.binary(max_size=200))
def test_garbage_is_no_certificate(data: bytes) -> None:
    with pytest.raises(ValueError, match="certificate"):
        read_der(data)
    with pytest.raises(ValueError, match="certificate"):
        read_pem(data)


@given(st.data())
def test_a_damaged_certificate_is_read_or_refused_but_breaks_nothing(data: st.DataObject) -> None:
    whole = bytearray(read_pem(CA).whole)
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    with suppress(ValueError):
        read_der(bytes(whole[: data.draw(st.integers(0, len(whole)))]))
