"""`pfl-node identity` and `pfl-node ca`: from nothing to a swarm's certificates, and every mistake in one line."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from bootstrap.__main__ import main as bootstrap
from pfl_node.security.certificate import ID
from tests.unit.cli.run_command import Shell


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_an_identity_is_made_once_and_shown_again(shell: Shell, place: Path) -> None:
    first = shell("identity", "--data-dir", "ann", "--format", "json")
    assert "created ann/key.pem" in first.err
    facts = json.loads(first.out)
    assert ID.fullmatch(facts["id"])
    assert (facts["certificate"], "pfl-node ca issue" in facts["hint"]) == (None, True)
    again = shell("identity", "--data-dir", "ann", "--format", "json")
    assert (json.loads(again.out), again.err) == (facts, "")
    assert sorted(path.name for path in (place / "ann").iterdir()) == ["key.pem"]


def test_with_an_allow_list_a_node_vouches_for_itself(shell: Shell, place: Path) -> None:
    id = json.loads(shell("identity", "--data-dir", "ann", "--format", "json").out)["id"]
    (place / "ann" / "allow").write_text(f"{id} ann\n")
    facts = json.loads(shell("identity", "--data-dir", "ann", "--format", "json").out)
    assert (facts["id"], facts["issuer"].startswith("none")) == (id, True)


def test_a_ca_issues_on_this_machine_and_on_request(shell: Shell, place: Path) -> None:
    assert shell("ca", "init", "--name", "our CA").code == 0
    assert shell("ca", "issue", "--data-dir", "ann").code == 0
    facts = json.loads(shell("identity", "--data-dir", "ann", "--format", "json").out)
    assert (facts["issuer"], facts["role"], facts["name"]) == ("our CA", "node", "ann")
    request = shell("identity", "--data-dir", "bob", "--request")
    (place / "bob.csr").write_text(request.out)
    assert shell("ca", "issue", "--request", "bob.csr", "--out", "parcel").code == 0
    assert sorted(path.name for path in (place / "parcel").iterdir()) == ["ca.pem", "cert.pem", "revoked"]
    for file in (place / "parcel").iterdir():
        file.rename(place / "bob" / file.name)
    assert json.loads(shell("identity", "--data-dir", "bob", "--format", "json").out)["name"] == "bob"
    assert shell("ca", "issue", "--data-dir", "olga", "--operator", "--days", "30").code == 0
    rows = json.loads(shell("ca", "list", "--format", "json").out)["issued"]
    assert [(row["name"], row["role"], row["state"]) for row in rows] == [
        ("ann", "node", "valid"),
        ("bob", "node", "valid"),
        ("olga", "operator", "valid"),
    ]


def test_the_ca_warns_of_keys_that_others_can_read(shell: Shell, place: Path) -> None:
    shell("ca", "init")
    shell("ca", "issue", "--data-dir", "ann")
    (place / "pfl-ca" / "ca.key").chmod(0o644)
    line = "warning: other users can read the private key {} (mode 0644): chmod 600 {}"
    ca = line.format("pfl-ca/ca.key", "pfl-ca/ca.key")
    assert shell("ca", "list").err.splitlines() == [ca]
    (place / "ann" / "key.pem").chmod(0o644)
    node = line.format("ann/key.pem", "ann/key.pem")
    assert shell("ca", "issue", "--data-dir", "ann").err.splitlines() == [ca, node]
    assert shell("identity", "--data-dir", "ann").err.splitlines() == [node]


def test_who_is_revoked_is_on_the_list_and_gets_nothing_more(shell: Shell, place: Path) -> None:
    shell("ca", "init")
    shell("ca", "issue", "--data-dir", "ann")
    id = json.loads(shell("identity", "--data-dir", "ann", "--format", "json").out)["id"]
    for who in ("ann", id, "ann/cert.pem"):
        assert shell("ca", "revoke", who).code == 0
    lines = [line for line in (place / "pfl-ca" / "revoked").read_text().splitlines() if line[0] != "#"]
    assert [line.split()[:2] for line in lines] == [[id, "ann"]]
    assert json.loads(shell("ca", "list", "--format", "json").out)["issued"][0]["state"] == "revoked"
    assert "is revoked" in shell.mistake("ca", "issue", "--data-dir", "ann")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            "ca issue --data-dir a",
            "there is no CA in pfl-ca: change to its directory or give --ca-dir; "
            "`pfl-node ca init --ca-dir pfl-ca` makes a new CA",
        ),
        ("ca init --ca-dir there", "there already is a CA in there; use another --ca-dir"),
        (
            "ca issue --ca-dir there",
            "name the recipient: --data-dir DIR on this machine, or --request FILE [--out DIR] for another one",
        ),
        (
            "ca issue --ca-dir there --request there/ca.pem",
            "there/ca.pem is not a certificate request; `pfl-node identity --request` prints one",
        ),
        (
            "ca revoke ann --ca-dir there",
            "'ann' is not an id, a name or a file; `pfl-node ca list` shows what was issued",
        ),
    ],
)
def test_each_mistake_is_one_line(shell: Shell, place: Path, words: str, line: str) -> None:
    shell("ca", "init", "--ca-dir", "there")
    assert shell.mistake(*words.split()) == line


@pytest.mark.parametrize("words", ["peers 127.0.0.1:9 --data-dir ann", "doctor 127.0.0.1:9 --data-dir ann"])
def test_the_directory_of_another_user_is_one_line(
    shell: Shell, place: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    shell("ca", "init")
    shell("ca", "issue", "--data-dir", "ann")
    monkeypatch.setattr(Path, "stat", _stat_of_another_user)
    hint = "Permission denied; run the command as the user who owns ann"
    assert shell.mistake(*words.split()) == f"cannot read ann/key.pem: {hint}"


def test_the_directory_of_another_user_is_one_line_of_a_bootstrap(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Path, "stat", _stat_of_another_user)
    umask = os.umask(0o022)
    try:
        code = bootstrap(["--data-dir", "ann", "--listen", "127.0.0.1:0", "--tls", "--log-format", "console"])
    finally:
        os.umask(umask)
    line = capsys.readouterr().err
    assert (code, line.count("\n")) == (2, 1)
    assert "cannot read ann/ca.pem: Permission denied; run the command as the user who owns ann" in line


def _stat_of_another_user(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
    """Tests may run as root, whom no permission stops."""
    if path.parent.name == "ann":
        raise PermissionError(errno.EACCES, "Permission denied", str(path))
    return os.stat(path, follow_symlinks=follow_symlinks)
