"""A site, a bootstrap and an operator over real TLS; and each of them lying to the others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from pfl_node.enrolment.enrolment_client import Bootstrap, Unreachable, find_authority, trusting
from pfl_node.enrolment.enrolment_server import EnrolmentServer
from pfl_node.enrolment.frames import BadFrame, Message
from pfl_node.enrolment.invitations import Invitations, SignedAnswer
from pfl_node.enrolment.join_token import digest_of, new_secret
from pfl_node.enrolment.operator_calls import BootstrapPlace, EnrolmentOperator
from pfl_node.enrolment.proofs import TokenKeys, answer_tag, request_tag
from pfl_node.enrolment.site_calls import SiteRequest
from pfl_node.enrolment.site_plan import SitePlan
from pfl_node.errors import ConfigError, Unavailable
from pfl_node.security.ca import Authority
from pfl_node.security.credentials import load_credentials
from pfl_node.security.tls_files import KEY, TlsFiles
from pfl_node.security.trust import Trust
from pfl_node.security.x509_builder import load_key, make_request
from pfl_node.wire.connector import Proxy
from tests.unit.enrolment.office import PLAN, Office, office
from tests.unit.wire.connect_proxy import ConnectProxy

FAST = 0.05  # seconds


@pytest.fixture
def wards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Office]:
    monkeypatch.setattr("pfl_node.enrolment.enrolment_server.POLL", FAST)
    with office(tmp_path) as made:
        yield made


def _same(message: Message, _: bytes) -> Message:
    return message


def confirm(wards: Office, name: str = "east") -> str:
    [one] = [one for one in wards.operator.pending() if one.invited.name == name]
    wards.operator.confirm(one, days=1)
    return one.id


def test_a_site_gets_its_certificate_when_the_operator_has_confirmed_it(wards: Office) -> None:
    site = wards.site(wards.invite())
    assert site.plan() == PLAN
    assert site.confirmed() is None
    assert confirm(wards) == site.id
    found = site.confirmed()
    assert found
    site.keep(found)
    mine = load_credentials(TlsFiles.find(wards.path / "east"))
    assert (mine.id, mine.certificate.name) == (site.id, "east")
    assert wards.operator.pending() == []
    assert [row.name for row in wards.authority.issued()] == ["bootstrap", "east"]


def test_a_site_that_waits_hears_of_the_confirmation_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with office(tmp_path) as wards:  # the bootstrap would hold the request for 20 s
        site = wards.site(wards.invite())
        site.plan()
        waiting = threading.Thread(target=lambda: heard.append(site.confirmed()))
        heard: list[object] = []
        waiting.start()
        confirm(wards)
        waiting.join(10)
        assert heard
        assert heard[0] is not None


def test_a_site_that_may_only_use_a_proxy_joins_through_it(wards: Office) -> None:
    with proxy_thread("ann:secret") as proxy:
        token = wards.invite()
        refused = Proxy(proxy.address, "", lambda host: False)
        allow = rf"407.*the proxy must allow CONNECT to {token.enrol}, 127\.0\.0\.1:7946; ask the operator"
        with pytest.raises(Unreachable, match=allow):
            SiteRequest(token, wards.path / "east", refused)
        closed = replace(refused, address="127.0.0.1:1")
        with pytest.raises(Unreachable, match=r"no connection to the proxy 127\.0\.0\.1:1; check network\.proxy"):
            SiteRequest(token, wards.path / "east", closed)
        site = SiteRequest(token, wards.path / "east", replace(refused, authorization="Basic YW5uOnNlY3JldA=="))
        site.plan()
        confirm(wards)
        assert site.confirmed()
        assert set(proxy.targets) == {wards.server.address}


@contextmanager
def proxy_thread(password: str) -> Iterator[ConnectProxy]:
    """In a thread, as the site's calls block."""
    loop, proxy = asyncio.new_event_loop(), ConnectProxy(password)
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(proxy.__aenter__(), loop).result(10)
        yield proxy
        asyncio.run_coroutine_threadsafe(proxy.__aexit__(), loop).result(10)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        for task in (left := asyncio.all_tasks(loop)):
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left))
        loop.close()


def test_a_token_is_good_for_one_site_which_may_repeat(wards: Office) -> None:
    token = wards.invite()
    first = wards.site(token)
    first.plan()
    with pytest.raises(ConfigError, match=f"was used by another node \\({first.id}\\).*repeat `pfl-node join` in"):
        wards.site(token, "elsewhere").plan()
    confirm(wards)
    again = wards.site(token)
    assert (again.id, again.new) == (first.id, False)
    again.plan()
    assert again.confirmed()
    with pytest.raises(ConfigError, match="was used by another node"):
        wards.site(token, "elsewhere").plan()


def test_a_replaced_withdrawn_or_invented_token_is_not_known(wards: Office) -> None:
    old = wards.invite()
    new = wards.invite()
    with pytest.raises(ConfigError, match=r"does not know this token.*ask the operator for a new token"):
        wards.site(old).plan()
    wards.operator.withdraw("east")
    for token in (new, replace(new, secret=new_secret())):
        with pytest.raises(ConfigError, match=r"does not know this token.*`pfl-node ca invite east`"):
            wards.site(token).plan()
    with pytest.raises(ConfigError, match="has no open invitation"):
        wards.operator.withdraw("east")


def test_an_expired_token_is_told(wards: Office) -> None:
    token = wards.invite(seconds=-1)
    with pytest.raises(ConfigError, match=r"the token expired on .* UTC: ask the operator for a new token"):
        wards.site(token).plan()


def test_another_task_than_that_of_the_token_is_refused(wards: Office) -> None:
    token = replace(wards.invite(), plan=SitePlan({"run": "other"}, {}).digest)
    with pytest.raises(ConfigError, match="another task or other settings than those that the token is for"):
        wards.site(token).plan()


def test_a_bootstrap_that_does_not_answer_is_told_and_nothing_is_lost(wards: Office) -> None:
    token = replace(wards.invite(), enrol="127.0.0.1:1")
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1 does not answer \(nothing listens there\)"):
        wards.site(token)
    assert (wards.path / "east" / KEY).exists()
    with pytest.raises(Unreachable, match="no such host"):
        wards.site(replace(token, enrol="no-such-host.invalid:7947"))


def test_the_bootstrap_of_another_ca_gets_nothing_of_the_token(wards: Office, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    with office(tmp_path / "theirs") as theirs:
        token = replace(wards.invite(), enrol=theirs.server.address)
        with pytest.raises(ConfigError, match="belongs to another CA than the token"):
            wards.site(token).plan()
        assert dict(theirs.server.counters) == {"ca": 1}


def test_an_operator_who_calls_the_bootstrap_of_another_ca_is_told(wards: Office, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    with office(tmp_path / "theirs") as theirs:
        BootstrapPlace.remember(wards.authority, "127.0.0.1:7946", theirs.server.address)
        with pytest.raises(ConfigError, match=r"belongs to another CA than .*pfl-ca: give the right address once"):
            EnrolmentOperator(wards.authority).pending()


def test_a_bootstrap_that_shows_the_right_ca_but_has_no_certificate_of_it_gets_nothing(
    wards: Office, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "theirs").mkdir()
    with office(tmp_path / "theirs") as theirs:
        roots = wards.authority.pem
        credentials = theirs.server._trust.credentials
        lying = replace(credentials, roots=roots)
        theirs.server._tls()  # with its own CA
        theirs.server._trust.credentials = lying
        token = replace(wards.invite(), enrol=theirs.server.address)
        with pytest.raises(ConfigError, match="a certificate of another CA than its own: do not trust it"):
            wards.site(token).plan()
        assert theirs.server.counters["asked"] == theirs.server.counters["unknown"] == 0


def test_a_clock_that_is_wrong_is_told_before_tls_fails(tmp_path: Path) -> None:
    with office(tmp_path) as wards:
        token = wards.invite()
        wards.server._clock = lambda: 4e9
        with pytest.raises(
            ConfigError, match=r"the clock of this machine is \d+ days behind that of .*: set the wrong one"
        ):
            wards.site(token)
        with pytest.raises(ConfigError, match=r"the clock of this machine is \d+ days behind"):
            wards.operator.pending()


def test_only_the_holder_of_the_cas_key_operates(wards: Office) -> None:
    """Also members and read-only operators of the same CA do not."""
    wards.site(wards.invite()).plan()
    wards.authority.issue_for(wards.path / "olga", name="olga", days=1, operator=True)
    for presented in (None, "bootstrap", "olga"):
        files = TlsFiles.find(wards.path / presented) if presented else None
        context = trusting(wards.authority.pem, (files.cert, files.key) if files else None)
        messages: tuple[Message, ...] = (
            {"do": "pending"},
            {"do": "withdraw", "name": "east"},
            {"do": "invite", "invitations": [], "plan": ""},
            {"do": "answer", "invitation": "x", "certificate": "", "revoked": "", "tag": ""},
        )
        for message in messages:
            answer = Bootstrap(wards.server.address, context).call(partial(_same, message))
            assert answer == {"problem": "failed", "text": "only the operator who has the CA's key may do this"}


def test_an_operator_of_another_ca_is_not_believed(wards: Office, tmp_path: Path) -> None:
    other = Authority.create(tmp_path / "other", "another CA", 1)
    (tmp_path / "session").mkdir()
    mine = other.identify(tmp_path / "session", minutes=5)
    context = trusting(wards.authority.pem, mine)
    with pytest.raises(ConfigError):
        Bootstrap(wards.server.address, context).call(lambda _: {"do": "pending"})


def test_a_bootstrap_that_exchanges_a_request_is_found_out(wards: Office) -> None:
    """It knows its own key of the token and not the operator's."""
    token = wards.invite()
    wards.site(token).plan()
    thief = SiteRequest(token, wards.path / "thief")
    request = make_request(load_key(wards.path / "thief" / KEY)).decode()
    book = wards.server.invitations
    [found] = book.pending()
    forged = request_tag(TokenKeys.of(token.secret).bootstrap, request)
    book._keep({found.id: replace(found, request=request, site=thief.id, operator_tag=forged)})
    with pytest.raises(ConfigError, match="was not made with its token: the bootstrap exchanged it; do not trust"):
        wards.operator.pending()


def test_an_answer_that_is_not_the_operators_is_refused(wards: Office) -> None:
    """Also a genuine certificate of the CA: the list of revoked ids belongs to the answer."""
    token = wards.invite()
    site = wards.site(token)
    site.plan()
    confirm(wards)
    book, id = wards.server.invitations, TokenKeys.of(token.secret).id
    genuine = book._known[id].answer
    assert genuine
    book.answer(id, replace(genuine, revoked="# nobody\n"))
    with pytest.raises(ConfigError, match="the answer is not the operator's: do not trust"):
        site.confirmed()


def test_a_certificate_for_another_key_is_refused(wards: Office) -> None:
    token = wards.invite()
    site = wards.site(token)
    site.plan()
    keys = TokenKeys.of(token.secret)
    wards.authority.issue_for(wards.path / "thief", name="thief", days=1)
    pem = (wards.path / "thief" / "cert.pem").read_text()
    wards.server.invitations.answer(
        keys.id, SignedAnswer(certificate=pem, revoked="", tag=answer_tag(keys.operator, pem, ""))
    )
    with pytest.raises(ConfigError, match=r"the certificate is for .*, and the key here is"):
        site.confirmed()


def test_another_member_cannot_use_what_a_site_sent_to_it(wards: Office) -> None:
    """The tag is bound to the certificate of the bootstrap that was called."""
    site = wards.site(wards.invite())
    for_a_member = site._message(b"the digest of another certificate", wait=False)
    answer = Bootstrap(wards.server.address, trusting(wards.authority.pem)).call(lambda _: for_a_member)
    assert answer["problem"] == "unknown"
    assert wards.operator.pending() == []


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"do": 1},
        {"do": "dance"},
        {"do": "ask"},
        {"do": "ask", "invitation": [], "request": {}},
        {"x": "y" * 17_000},
    ],
)
def test_messages_of_strangers_that_make_no_sense_end_the_connection(wards: Office, message: Message) -> None:
    context = trusting(wards.authority.pem)
    try:
        answer = Bootstrap(wards.server.address, context).call(lambda _: message)
    except (Unreachable, BadFrame):
        answer = {"problem": "failed"}
    assert answer["problem"] == "failed"
    assert find_authority(wards.server.address, digest_of(wards.authority.certificate.whole))[0]


def test_an_enrolment_port_in_use_is_reported_with_what_to_do(wards: Office) -> None:
    server = EnrolmentServer(Invitations(wards.path / "second"), Trust(TlsFiles.find(wards.path / "bootstrap")))
    text = r"is in use; choose another with --enrol HOST:PORT, and give it to `pfl-node ca invite --enrol`"
    with pytest.raises(Unavailable, match=text):
        asyncio.run(server.start(wards.server.address))


def test_a_revoked_key_is_not_confirmed(wards: Office) -> None:
    site = wards.site(wards.invite())
    site.plan()
    wards.authority.revoke(site.id)
    [one] = wards.operator.pending()
    with pytest.raises(ConfigError, match="is revoked and gets no new certificate"):
        wards.operator.confirm(one, days=1)


def test_invitations_survive_a_restart_of_the_bootstrap_and_the_operators_machine_has_no_secret(
    wards: Office,
) -> None:
    token = wards.invite()
    for path in (wards.authority.path / "invitations.json", *(wards.path / "bootstrap" / "enrolment").iterdir()):
        assert token.secret.hex() not in path.read_text()
        assert token.encode() not in path.read_text()
    assert not [path for path in wards.authority.path.iterdir() if path.name.startswith(".session")]
