"""`pfl-node ca invite`, `join`, `ca confirm`: from nothing to a site that is ready, and each mistake in a line."""

from __future__ import annotations

import json
import re
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from pfl_node.cli import main
from pfl_node.enrolment.join_token import JoinToken
from pfl_node.settings.load import load_settings
from tests.unit.cli.run_command import Outcome, Shell
from tests.unit.enrolment.office import Office, office

TASK = "from torch import nn\n\ndef ward(folder: str): ...\n"
LISTEN = ("--listen", "127.0.0.1:0")


@pytest.fixture
def wards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Office]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pfl_node.enrolment.enrolment_server.POLL", 0.05)
    (tmp_path / "ward.py").write_text(TASK)
    (tmp_path / "wards.toml").write_text('run = "wards"\npolicy = "el"\n[task]\nname = "ward.py:ward"\n')
    with office(tmp_path) as made:
        yield made


def invite(shell: Shell, *names: str) -> list[str]:
    done = shell("ca", "invite", *names, "--config", "wards.toml")
    assert done.code == 0, done.err
    return re.findall(r"pfl-node join (\w+)", done.out)


def asks(shell: Shell, token: str, *words: str) -> str:
    """The site asks and gives up waiting; the id that it printed."""
    done = shell("join", token, *LISTEN, "--timeout", "0", *words)
    assert done.code == 2, done
    assert "repeat this command later, nothing is lost" in done.err
    found = re.search(r"ca confirm \S+ ([0-9a-f-]{19})", done.out)
    assert found
    return found[1]


def joins(shell: Shell, token: str, *words: str) -> Outcome:
    done = shell("join", token, *LISTEN, "--timeout", "0", *words)
    assert done.code == 0, done
    return done


def test_three_commands_make_a_site_that_is_ready_to_start(shell: Shell, wards: Office) -> None:
    north, east = invite(shell, "north", "east")
    ids = [asks(shell, north, "--set", "task.folder=/srv/n"), asks(shell, east)]
    rows = json.loads(shell("ca", "pending", "--format", "json").out)["pending"]
    assert [(row["name"], row["id"]) for row in rows] == [("north", ids[0]), ("east", ids[1])]
    confirmed = shell("ca", "confirm", "north", ids[0], "east", ids[1].replace("-", " ").upper())
    assert (confirmed.code, confirmed.out.count("is a member")) == (0, 2)
    done = joins(shell, north, "--set", "task.folder=/srv/n")
    home = wards.path / "pfl-north"
    assert f"pfl-node --config {home}/pfl-node.toml" in done.out
    assert f"sudo systemctl enable --now {home}/pfl-node.service" in done.out
    assert f"read ward.py, then check the site:  pfl-node doctor --config {home}/pfl-node.toml" in done.out
    settings = load_settings(config=home / "pfl-node.toml")
    assert (settings.name, settings.run, settings.policy.name) == ("north", "wards", "el")
    assert (settings.task.name, settings.task.options) == (f"{home}/ward.py:ward", {"folder": "/srv/n"})
    assert (settings.peer_seed, settings.tls.on, settings.data_dir) == (("127.0.0.1:7946",), True, home)
    assert (home / "ward.py").read_text() == TASK
    assert {stat.S_IMODE(path.stat().st_mode) for path in home.iterdir()} == {0o600}
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert main(["config", "--config", str(home / "pfl-node.toml")]) == 0


def test_a_later_site_is_invited_with_the_settings_of_the_others(shell: Shell, wards: Office) -> None:
    hint = "give the settings that all sites share: --config FILE, or --task, --policy and --run"
    assert shell.mistake("ca", "invite", "east") == hint
    [first] = invite(shell, "north")
    later = shell("ca", "invite", "east")
    assert "run 'wards', policy 'el', task 'ward.py:ward'; each site receives ward.py" in later.out
    [second] = re.findall(r"pfl-node join (\w+)", later.out)
    assert JoinToken.decode(first).plan == JoinToken.decode(second).plan


def test_a_site_that_has_joined_is_told_how_to_start(shell: Shell, wards: Office) -> None:
    [token] = invite(shell, "east")
    shell("ca", "confirm", "east", asks(shell, token))
    joins(shell, token)
    line = shell.mistake("join", token, *LISTEN, "--set", "task.folder=/srv/my scans")
    assert line.startswith(f"{wards.path}/pfl-east has joined already: start it with `pfl-node --config ")
    assert "pfl-node.toml --set 'task.folder=/srv/my scans'`, or join with another --data-dir" in line
    assert "was used by another node" in shell.mistake("join", token, *LISTEN, "--data-dir", "elsewhere")


def test_a_second_site_of_the_same_name_is_pointed_out(shell: Shell, wards: Office) -> None:
    invite(shell, "east")
    assert "is a member" not in shell("ca", "invite", "east").out
    [token] = invite(shell, "east")
    shell("ca", "confirm", "east", asks(shell, token))
    [id] = [one.id for one in wards.authority.issued() if one.name == "east"]
    assert f"{id} of this name is a member" in shell("ca", "invite", "east").out


def test_the_token_may_come_from_stdin(shell: Shell, wards: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    [token] = invite(shell, "east")
    monkeypatch.setattr("sys.stdin", io.StringIO(token[:70] + "\n" + token[70:] + "\n"))
    asks(shell, "-")


def test_an_own_copy_of_the_task_is_used_if_it_is_the_same(shell: Shell, wards: Office) -> None:
    [token] = invite(shell, "east")
    (wards.path / "own").mkdir()
    (wards.path / "own" / "ward.py").write_text(TASK)
    shell("ca", "confirm", "east", asks(shell, token, "--task", "own/ward.py:ward"))
    joins(shell, token, "--task", "own/ward.py:ward", "--no-doctor")
    assert not (wards.path / "pfl-east" / "ward.py").exists()
    (wards.path / "own" / "ward.py").write_text(TASK + "\n")
    [token] = invite(shell, "south")
    line = shell.mistake("join", token, *LISTEN, "--task", "own/ward.py:ward")
    assert line.startswith("own/ward.py:ward is another task than that of the token (ward.py:ward): ")


def test_a_file_of_the_site_is_not_overwritten(shell: Shell, wards: Office) -> None:
    [token] = invite(shell, "east")
    asks(shell, token)
    (wards.path / "pfl-east" / "ward.py").write_text("mine = 1\n")
    line = shell.mistake("join", token, *LISTEN)
    assert line.endswith(
        "pfl-east/ward.py is another task than that of the token: move the file away, and repeat the command"
    )
    assert (wards.path / "pfl-east" / "ward.py").read_text() == "mine = 1\n"


def test_mistakes_of_a_site_are_found_before_the_operator_is_asked(shell: Shell, wards: Office) -> None:
    [token] = invite(shell, "east")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        line = shell.mistake("join", token, "--listen", f"127.0.0.1:{port}")
        taken = shell.mistake("join", token, *LISTEN, "--set", f"http.listen=127.0.0.1:{port}")
    begin = f"port {port} is in use on this machine: give this site another one, such as "
    assert line.startswith(f"{begin}--listen 127.0.0.1:")
    assert taken.startswith(f"{begin}--set http.listen=127.0.0.1:")
    assert "--listen takes an address of this machine" in shell.mistake(
        "join", token, "--listen", "203.0.113.1:7946"
    )
    assert "typing error" in shell.mistake("join", token[:-9] + "aaaaaaaaa")
    assert "this is not a join token" in shell.mistake("join", "pfl-east")
    assert not (wards.path / "pfl-east" / "cert.pem").exists()
    assert "unknown setting 'task_folder' in --set" in shell.mistake(
        "join", token, *LISTEN, "--set", "task_folder=1"
    )
    asks(shell, token, "--set", "task.folder=1")  # the token is still good


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("ca confirm", "no site waits for a confirmation: has it run `pfl-node join TOKEN`?"),
        ("ca confirm east 0123", "east does not wait for a confirmation: has it run `pfl-node join TOKEN`?"),
        (
            "ca confirm east",
            "give a name and an id for each site, for example: ca confirm east 13da-1ae6-c90b-fe30",
        ),
        ("ca invite ../east", "'../east' cannot name a site: 1 to 32 letters, digits, . _ -, each name once"),
        ("ca invite east east", "'east' cannot name a site: 1 to 32 letters, digits, . _ -, each name once"),
        (
            "ca invite east --config listen.toml",
            "'listen' is not the same at all sites: leave it out, `pfl-node join` sets it",
        ),
        ("ca withdraw east", "east has no open invitation; `pfl-node ca revoke east` removes a member"),
    ],
)
def test_each_mistake_of_the_operator_is_one_line(shell: Shell, wards: Office, words: str, line: str) -> None:
    (wards.path / "listen.toml").write_text('listen = "192.0.2.1:7946"\n')
    assert shell.mistake(*words.split()) == line


def test_an_id_that_the_site_did_not_tell_is_not_confirmed(shell: Shell, wards: Office) -> None:
    north, east = invite(shell, "north", "east")
    good, wrong = asks(shell, north), asks(shell, east)[:-1] + "x"
    assert "is not an id: 16 to 32 hexadecimal digits" in shell.mistake(
        "ca", "confirm", "north", good, "east", wrong
    )
    line = shell.mistake("ca", "confirm", "north", good, "east", "0000-0000-0000-0000")
    assert "someone else may have its token; if it is not mistyped, run `pfl-node ca withdraw east`" in line
    assert len(json.loads(shell("ca", "pending", "--format", "json").out)["pending"]) == 2


def test_a_confirmation_can_be_repeated(shell: Shell, wards: Office) -> None:
    north, east = invite(shell, "north", "east")
    first = asks(shell, north)
    assert shell("ca", "confirm", "north", first).code == 0
    second = asks(shell, east)
    done = shell("ca", "confirm", "north", first, "east", second)
    assert (done.code, done.out.count("is a member already"), done.out.count("is a member;")) == (0, 1, 1)
    assert "north does not wait" in shell.mistake("ca", "confirm", "north", second)
    assert "north does not wait" in shell.mistake("ca", "confirm", "north", first[:4])


def test_without_arguments_the_operator_is_asked_for_each_site(
    shell: Shell, wards: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    for token in invite(shell, "north", "east"):
        asks(shell, token)
    answers = iter([False, True])
    monkeypatch.setattr("typer.confirm", lambda question: next(answers))
    done = shell("ca", "confirm")
    assert (done.code, done.out.count("asks with the id"), done.out.count("is a member")) == (0, 2, 1)
    assert json.loads(shell("ca", "pending", "--format", "json").out)["pending"][0]["name"] == "north"


def test_a_ca_and_its_bootstrap_are_made_by_one_command(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = shell("ca", "init", "--bootstrap", "192.0.2.1:7946")
    line = (
        "pfl-bootstrap --data-dir pfl-bootstrap --listen 0.0.0.0:7946 --advertise 192.0.2.1:7946 --enrol --relay"
    )
    assert line in made.out
    assert {"key.pem", "cert.pem", "ca.pem"} <= {path.name for path in (tmp_path / "pfl-bootstrap").iterdir()}
    assert json.loads((tmp_path / "pfl-ca" / "bootstrap.json").read_text())["enrol"] == "192.0.2.1:7947"
    assert "the port must be" in shell.mistake("ca", "init", "--ca-dir", "b", "--bootstrap", "192.0.2.1:0")
    assert not (tmp_path / "b").exists()


def test_a_new_ca_does_not_replace_the_certificate_of_a_bootstrap(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shell("ca", "init", "--bootstrap", "192.0.2.9:7946")
    before = (tmp_path / "pfl-bootstrap" / "cert.pem").read_bytes()
    line = "there already is a bootstrap in pfl-bootstrap: change to an empty directory for a new swarm"
    assert shell.mistake("ca", "init", "--ca-dir", "b", "--bootstrap", "192.0.2.1:7946") == line
    again = "; another address for this one: pfl-node ca invite NAME… --bootstrap HOST:PORT"
    assert shell.mistake("ca", "init", "--bootstrap", "192.0.2.1:7946") == line + again
    assert (tmp_path / "pfl-bootstrap" / "cert.pem").read_bytes() == before
    assert not (tmp_path / "b").exists()


def test_without_a_bootstrap_the_operator_is_told(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shell("ca", "init")
    hint = "give its address once with `pfl-node ca invite --bootstrap HOST:PORT`"
    words = ("ca", "invite", "east", "--run", "wards")
    assert shell.mistake(*words) == f"pfl-ca does not say where the bootstrap is: {hint}"
    line = shell.mistake(*words, "--bootstrap", "127.0.0.1:1")
    assert line.startswith(
        "127.0.0.1:2 does not answer (nothing listens there): start the bootstrap there with --enrol"
    )
