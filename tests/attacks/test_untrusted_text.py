"""Names and words of peers, requests and files on their way to a terminal or a log."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
import structlog
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import NameOID

from bootstrap.options import parse
from pfl_node.cli import main
from pfl_node.cli.output import as_facts, as_json, as_table
from pfl_node.errors import ConfigError, Refused
from pfl_node.membership import packet_codec
from pfl_node.membership.member import Member
from pfl_node.ops.logs import configure_logs
from pfl_node.printable import printable
from pfl_node.security.x509_builder import own_key
from pfl_node.settings import LogSettings
from tests.attacks.conftest import Figure
from tests.e2e.processes import own_process_command

OSC52 = "\x1b]52;c;cm0gLXJm\x07"  # writes the clipboard
EVIL = (OSC52, "ok\n12:00:00 [info] all is well", "\x9b2J", "\u202eevil", "\x7f", "\ue000\U000e0041")


@pytest.mark.parametrize("evil", EVIL)
@pytest.mark.parametrize("field", ["id", "name", "run"])
def test_a_member_has_a_printable_name(evil: str, field: str) -> None:
    member = Member(**{"id": "id", "name": "name", "address": "127.0.0.1:1", field: evil})  # type: ignore[arg-type]
    with pytest.raises(Refused, match="unprintable"):
        packet_codec.from_wire(packet_codec.to_wire(member))


@pytest.mark.parametrize("evil", EVIL)
def test_verbs_print_text_and_nothing_else(evil: str, capsys: pytest.CaptureFixture[str], figure: Figure) -> None:
    as_table(("name",), [[evil]])
    as_facts({"state": evil, "peers": [evil], evil: 1})
    as_json({"peers": [{"name": evil}]})
    out = capsys.readouterr().out
    raw = sum(not character.isprintable() for character in out.replace("\n", ""))
    assert raw == 0
    assert "all is well" not in [line.strip() for line in out.split("\n")]
    assert json.loads(out[out.index("{\n") :])["peers"][0]["name"] == evil  # JSON says it as it is
    if evil is OSC52:
        figure("OSC 52 in a name, at `peers` and `status`", "sent to the terminal", f"{raw} raw characters")


@pytest.mark.parametrize("format", ["console", "json"])
@pytest.mark.parametrize("evil", EVIL)
def test_a_peer_cannot_forge_a_line_of_the_log(evil: str, format: str, figure: Figure) -> None:
    stream = StringIO()
    configure_logs(LogSettings(level="info", format=format), stream)  # type: ignore[arg-type]
    structlog.get_logger("x").info("joined", peer=evil)
    structlog.get_logger("x").warning(f"refused a call from {evil}")
    lines = stream.getvalue().rstrip("\n").split("\n")
    assert len(lines) == 2
    assert all(line.isprintable() for line in lines)
    if evil is EVIL[1] and format == "console":
        figure("a line end in a name, in the log", "a forged line", f"{len(lines)} lines of 2 records")


def test_a_request_that_hides_its_id_is_not_signed(tmp_path: Path, figure: Figure) -> None:
    """The operator compares the id that `ca issue` prints: a name must not be able to cover it."""
    key, _ = own_key(tmp_path / "key.pem")
    unit = x509.NameAttribute(
        NameOID.ORGANIZATIONAL_UNIT_NAME, "site-b\x1b[2K\rnode 230a7f34df88fef084b8f9eda98faf98"
    )
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([unit])).sign(key, hashes.SHA256())
    (tmp_path / "b.csr").write_bytes(request.public_bytes(serialization.Encoding.PEM))
    assert own_process_command("ca", "init", cwd=tmp_path).returncode == 0
    done = own_process_command("ca", "issue", "--request", "b.csr", cwd=tmp_path)
    assert done.returncode == 2
    assert "unprintable" in done.stderr
    assert all(line.isprintable() for line in (done.stdout + done.stderr).split("\n"))
    unit = x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, "b (230a7f34df88fef084b8f9eda98faf98): cert.pem")
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([unit])).sign(key, hashes.SHA256())
    (tmp_path / "c.csr").write_bytes(request.public_bytes(serialization.Encoding.PEM))
    told = own_process_command("ca", "issue", "--request", "c.csr", cwd=tmp_path).stdout
    assert told.split()[1].rstrip(":") != "230a7f34df88fef084b8f9eda98faf98"  # the real id comes first
    figure("escape sequences in a CSR's name", "the id is hidden", f"exit code {done.returncode}, 1 line")


def test_what_is_printable_stays_as_it_is() -> None:
    assert printable("Ærø, 東京, node-1 🙂") == "Ærø, 東京, node-1 🙂"


@pytest.mark.parametrize("words", [("--name", OSC52), ("--run", OSC52), ("--name", "n" * 65)])
def test_a_name_that_every_peer_would_refuse_is_a_mistake_at_the_start(
    capsys: pytest.CaptureFixture[str], words: tuple[str, str]
) -> None:
    assert main([*words, "--listen", "127.0.0.1:0"]) == 2
    said = capsys.readouterr().err.rstrip("\n")
    assert "must be printable and have at most 64 characters" in said
    assert said.isprintable()


def test_a_bootstrap_checks_its_name_too() -> None:
    with pytest.raises(ConfigError, match="must be printable"):
        parse(["--name", OSC52])
