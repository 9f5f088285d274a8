"""A token is good for one site, until it expires, also after a restart of the bootstrap."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from pfl_node.enrolment.invitations import MOST, Invitation, Invitations, NotInvited, Problem, SignedAnswer
from pfl_node.enrolment.join_token import digest_of
from pfl_node.enrolment.proofs import TokenKeys, caller_tag
from pfl_node.errors import PflError, StoreError
from pfl_node.security.x509_builder import key_id, make_request, new_key
from pfl_node.store.atomic import private_files

PLAN = '{"settings":{},"files":{}}'
DIGEST = digest_of(PLAN.encode()).hex()
SERVER = b"certificate"
EAST, SOUTH = TokenKeys.of(b"e" * 16), TokenKeys.of(b"s" * 16)


def invitation(keys: TokenKeys = EAST, name: str = "east", expires: float = 100.0) -> Invitation:
    return Invitation(id=keys.id, name=name, key=keys.bootstrap.hex(), expires=expires, plan=DIGEST)


def ask(book: Invitations, request: str, keys: TokenKeys = EAST, now: float = 1.0) -> Invitation:
    return book.ask(keys.id, SERVER, request, "tag", caller_tag(keys.bootstrap, SERVER, request, "tag"), now)


@pytest.fixture
def book(tmp_path: Path) -> Invitations:
    made = Invitations(tmp_path / "book")
    made.invite([invitation(), invitation(SOUTH, "south")], PLAN, now=0.0)
    return made


def problem(book: Invitations, request: str, keys: TokenKeys = EAST, now: float = 1.0) -> Problem:
    with pytest.raises(NotInvited) as refused:
        ask(book, request, keys, now)
    return refused.value.problem


def test_the_first_site_uses_the_invitation_up_and_may_ask_again(book: Invitations, tmp_path: Path) -> None:
    key = new_key()
    first = ask(book, make_request(key).decode())
    assert first.site == key_id(key)
    assert problem(book, make_request(new_key()).decode()) is Problem.USED
    again = Invitations(tmp_path / "book")
    assert ask(again, make_request(key).decode()) == first
    assert problem(again, make_request(new_key()).decode()) is Problem.USED
    assert again.pending() == [first]


def test_an_expired_invitation_is_not_used_but_one_that_was_answered_can_be_fetched(book: Invitations) -> None:
    east, south = make_request(new_key()).decode(), make_request(new_key()).decode()
    ask(book, south, SOUTH)
    assert problem(book, east, now=101.0) is Problem.EXPIRED
    assert problem(book, south, SOUTH, now=101.0) is Problem.EXPIRED
    book.answer(SOUTH.id, SignedAnswer(certificate="c", revoked="", tag="t"))
    found = ask(book, south, SOUTH, now=101.0)
    assert found.answer
    assert found.answer.certificate == "c"
    assert book.pending() == []


def test_a_request_that_is_not_proved_changes_nothing(book: Invitations, tmp_path: Path) -> None:
    before = (tmp_path / "book" / "invitations.json").read_bytes()
    request = make_request(new_key()).decode()
    assert problem(book, request, TokenKeys.of(b"x" * 16)) is Problem.UNKNOWN
    for tag in ("", "0" * 64, caller_tag(EAST.bootstrap, b"other certificate", request, "tag")):
        with pytest.raises(NotInvited, match="does not know this token"):
            book.ask(EAST.id, SERVER, request, "tag", tag, 1.0)
    for bad in (
        "",
        "garbage",
        "x" * 5000,
        "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----",
    ):
        assert problem(book, bad) is Problem.BAD_REQUEST
    assert (tmp_path / "book" / "invitations.json").read_bytes() == before


def test_a_new_invitation_of_a_name_makes_the_old_one_void(book: Invitations) -> None:
    book.invite([invitation(TokenKeys.of(b"n" * 16))], PLAN, now=1.0)
    assert problem(book, make_request(new_key()).decode()) is Problem.UNKNOWN
    assert len(book) == 2
    assert book.withdraw("south") == 1
    assert book.withdraw("south") == 0
    assert problem(book, make_request(new_key()).decode(), SOUTH) is Problem.UNKNOWN


def test_the_number_of_invitations_is_limited_and_expired_ones_make_room(tmp_path: Path) -> None:
    book = Invitations(tmp_path / "book")
    rows = [invitation(TokenKeys.of(n.to_bytes(16)), f"site-{n}", 100.0) for n in range(MOST)]
    book.invite(rows, PLAN, now=0.0)
    with pytest.raises(PflError, match=f"there are {MOST} invitations"):
        book.invite([invitation()], PLAN, now=1.0)
    book.invite([invitation(expires=500.0)], PLAN, now=200.0)
    assert len(book) == MOST


def test_the_files_are_private_have_no_secret_and_old_plans_are_removed(tmp_path: Path) -> None:
    with private_files():
        book = Invitations(tmp_path / "book")
        book.invite([invitation()], PLAN, now=0.0)
    for path in (tmp_path / "book").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert b"e" * 16 not in path.read_bytes()
        assert (b"e" * 16).hex().encode() not in path.read_bytes()
    assert EAST.operator.hex() not in (tmp_path / "book" / "invitations.json").read_text()
    assert book.plan_of(invitation()) == PLAN
    book.withdraw("east")
    assert [path.name for path in (tmp_path / "book").iterdir()] == ["invitations.json"]


def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "invitations.json").write_text(json.dumps([{"id": 1}]))
    with pytest.raises(StoreError, match=r"is damaged .* move it away and invite again"):
        Invitations(tmp_path)
