"""Whom a node trusts, as its files say, and what it does when they change under it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pfl_node.errors import ConfigError, Reason, Refused
from pfl_node.security.certificate import read_pem
from pfl_node.security.requirements import check_files, prepare, reason_for_tls
from pfl_node.security.tls_files import TlsFiles
from pfl_node.security.trust import Trust, parse_ids
from pfl_node.security.x509_builder import new_key
from pfl_node.types import PeerId
from tests.identities import LONG_AGO, Site, fresh_id, pinned

SOMEBODY = PeerId("0" * 32)


def refusal(trust: Trust, id: PeerId) -> Reason | None:
    try:
        trust.permit(id)
    except Refused as refused:
        return refused.reason
    return None


def test_with_a_ca_and_no_list_everybody_whom_it_vouches_for_may(tmp_path: Path) -> None:
    assert refusal(Trust(Site(tmp_path).member("ann")), SOMEBODY) is None


def test_lists_appear_change_and_never_open_more_by_going_away(tmp_path: Path) -> None:
    files = Site(tmp_path).member("ann")
    trust = Trust(files)
    files.allow.write_text("f" * 32 + "\n")
    assert trust.refresh() == ["allow-list"]
    assert refusal(trust, SOMEBODY) is Reason.NOT_ALLOWED
    files.allow.write_text(f"{SOMEBODY} a friend # of mine\n")
    assert trust.refresh() == ["allow-list"]
    assert refusal(trust, SOMEBODY) is None
    files.revoked.write_text(SOMEBODY)
    assert trust.refresh() == ["revoked"]
    assert refusal(trust, SOMEBODY) is Reason.REVOKED
    files.revoked.unlink()
    files.allow.unlink()
    assert trust.refresh() == []
    assert refusal(trust, SOMEBODY) is Reason.REVOKED


def test_a_list_with_a_mistake_is_not_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = Site(tmp_path).member("ann")
    files.revoked.write_text(SOMEBODY)
    trust = Trust(files)
    files.revoked.write_text("everybody\n")
    assert trust.refresh() == []
    assert refusal(trust, SOMEBODY) is Reason.REVOKED
    assert "line 1: 'everybody' is not an id" in caplog.text


def test_a_list_names_the_line_of_a_mistake() -> None:
    assert parse_ids(f"# ours\n\n{SOMEBODY.upper()} ann\n", "allow") == {SOMEBODY}
    with pytest.raises(ConfigError, match="allow, line 2: 'abc' is not an id: 32 hexadecimal digits"):
        parse_ids(f"{SOMEBODY}\nabc\n", "allow")


def test_a_new_certificate_is_taken_and_a_wrong_one_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site = Site(tmp_path)
    trust = Trust(site.member("ann"))
    old = trust.credentials.certificate.serial
    site.member("ann")
    assert "certificate" in trust.refresh()
    assert (trust.generation, trust.credentials.certificate.serial != old) == (1, True)
    site.certify("ann", start=LONG_AGO)
    assert trust.refresh() == []
    assert "the new certificate is not used" in caplog.text
    assert trust.generation == 1


def test_a_running_node_keeps_its_identity(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    site = Site(tmp_path)
    files = site.member("ann")
    trust = Trust(files)
    files.key.unlink()
    site.member("ann")
    assert "certificate" not in trust.refresh()
    assert "it is for the id" in caplog.text


def test_a_certificate_that_will_expire_soon_is_complained_of_now_and_then(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    moment = datetime.now(UTC)
    trust = Trust(Site(tmp_path).member("ann"), clock=lambda: moment)
    trust.refresh()
    assert caplog.text == ""
    moment += timedelta(hours=20)
    for _ in range(3):
        trust.refresh()
    assert caplog.text.count("expires on") == 1


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda site, files: site.certify("ann", start=LONG_AGO), "expired on"),
        (lambda site, files: files.ca.write_bytes(Site(site.path / "x").ca.pem), "was not issued by the CA"),
        (lambda site, files: files.ca.write_text("no"), "ca.pem is not a certificate in PEM"),
        (lambda site, files: files.cert.write_text("no"), "it contains no certificate"),
        (lambda site, files: files.cert.write_bytes(site.ca.pem), "is not for the key"),
        (lambda site, files: files.key.unlink(), "cannot read the key"),
        (lambda site, files: site.certify("ann", like=SOMEBODY), f"says {SOMEBODY}, but its key is"),
    ],
)
def test_what_others_would_refuse_is_one_line_at_the_start(tmp_path: Path, spoil: object, says: str) -> None:
    site = Site(tmp_path)
    files = site.member("ann")
    assert callable(spoil)
    spoil(site, files)
    with pytest.raises(ConfigError) as caught:
        Trust(files)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_keys_are_for_their_owner_only_and_never_written_over(tmp_path: Path) -> None:
    first = fresh_id(tmp_path / "ann")
    assert (tmp_path / "ann" / "key.pem").stat().st_mode & 0o777 == 0o600
    assert fresh_id(tmp_path / "ann") == first
    assert fresh_id(tmp_path / "bob") != first


def test_where_ids_are_pinned_a_node_makes_and_renews_its_own_certificate(tmp_path: Path) -> None:
    files = pinned(tmp_path / "ann", allow=[SOMEBODY])
    prepare(files, "ann")
    made = read_pem(files.cert.read_bytes())
    assert made.id == fresh_id(tmp_path / "ann")
    prepare(files)
    assert read_pem(files.cert.read_bytes()) == made
    files.cert.write_text("lost")
    prepare(files)
    assert read_pem(files.cert.read_bytes()).id == made.id


LOOPBACK = [("listen", "127.0.0.1:0"), ("advertise", None), ("peer_seed", "localhost:1")]
OUTSIDE = [("listen", "127.0.0.1:0"), ("peer_seed", "seed.example:7000")]


def test_tls_is_on_unless_everything_is_loopback_or_the_user_says_otherwise() -> None:
    assert reason_for_tls(None, False, LOOPBACK) is None
    assert reason_for_tls(True, False, LOOPBACK) == "TLS is required by the settings"
    assert reason_for_tls(None, True, OUTSIDE) is None
    assert "peer_seed 'seed.example:7000' is not loopback" in (reason_for_tls(None, False, OUTSIDE) or "")
    with pytest.raises(ConfigError, match="exclude each other"):
        reason_for_tls(True, True, LOOPBACK)


def test_what_is_missing_at_a_start_is_one_line_with_the_commands(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"`pfl-node ca init` once and `pfl-node ca issue --data-dir"):
        check_files(TlsFiles.find(tmp_path), "TLS is required by the settings")
    files = Site(tmp_path / "site").member("ann")
    files.cert.unlink()
    with pytest.raises(ConfigError, match=r"there is no certificate at .*cert\.pem: where the CA is, run"):
        check_files(files, "TLS is required by the settings")
    with pytest.raises(ConfigError, match="give --data-dir DIR"):
        TlsFiles.find(None)


def test_keys_of_other_kinds_are_refused(tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_text("no")
    with pytest.raises(ConfigError, match="is not a private key"):
        fresh_id(tmp_path)
    assert new_key().curve.name == "secp256r1"
