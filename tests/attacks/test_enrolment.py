"""Strangers at the port where sites join: silent, hasty, or talking nonsense."""

from __future__ import annotations

import os
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from pfl_node.address import parse_address
from pfl_node.enrolment.caller_limits import OPEN, PER_NETWORK
from pfl_node.enrolment.frames import ALPN, CALLER_LIMIT, HEAD, frame
from pfl_node.enrolment.operator_calls import BootstrapPlace, EnrolmentOperator
from pfl_node.enrolment.site_calls import SiteRequest
from pfl_node.enrolment.site_plan import SitePlan
from pfl_node.security.ca import Authority
from tests.attacks.conftest import Figure
from tests.attacks.idle_connections import still_open
from tests.e2e.processes import Process, ask

Start = Callable[..., Process]
PLAN = SitePlan({"run": "wards"}, {})
BOOTSTRAP = ("--data-dir", "pfl-bootstrap", "--listen", "127.0.0.1:0", "--tls", "--log-format", "json")
STORED = ["invitations.json", f"plan-{PLAN.digest.hex()}.json"]  # of one invitation
HASTE = 400  # handshakes
TIMES = 5
NONSENSE = {
    "random bytes": os.urandom(1000),
    "a length of 4 GB": b"\xff" * HEAD,
    "one byte too many": (CALLER_LIMIT + 1).to_bytes(HEAD) + b"x" * CALLER_LIMIT,
    "nested lists": len(b"[" * 16000).to_bytes(HEAD) + b"[" * 16000,
    "no object": (2).to_bytes(HEAD) + b"[]",
    "a command of the operator": frame({"do": "withdraw", "name": "east"}),
    "an invented token": frame({"do": "ask", "invitation": "0", "request": "", "operator_tag": "", "tag": ""}),
}


class Enrolment:
    def __init__(self, start: Start, path: Path) -> None:
        self.authority = Authority.create(path / "pfl-ca", "the CA", 1)
        self.authority.issue_for(path / "pfl-bootstrap", name="bootstrap", days=1)
        self.process = start("bootstrap", *BOOTSTRAP, "--enrol", "127.0.0.1:0")
        self.address = str(self.process.listening["enrol"])
        BootstrapPlace.remember(self.authority, self.process.address, self.address)
        self.operator = EnrolmentOperator(self.authority)
        self.stored = path / "pfl-bootstrap" / "enrolment"
        self.path = path

    def a_site_joins(self, name: str) -> float:
        """From the invitation to the certificate; seconds."""
        began = time.monotonic()
        [token] = self.operator.invite([name], PLAN, seconds=600)
        site = SiteRequest(token, self.path / name)
        site.plan()
        [pending] = self.operator.pending()
        self.operator.confirm(pending, days=1)
        assert site.confirmed()
        return time.monotonic() - began


@pytest.fixture
def enrolment(start: Start, tmp_path: Path) -> Enrolment:
    return Enrolment(start, tmp_path)


def connect(address: str, source: str) -> socket.socket:
    return socket.create_connection(parse_address(address), 5.0, source_address=(source, 0))


def handshake(address: str, source: str) -> ssl.SSLSocket | None:
    """None: the connection was closed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols([ALPN])
    try:
        return context.wrap_socket(connect(address, source))
    except OSError:
        return None


@contextmanager
def silent(address: str, count: int, source: str) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        opened = []
        for _ in range(count):
            with suppress(OSError):
                opened.append(stack.enter_context(connect(address, source)))
        yield opened


def test_strangers_at_the_enrolment_neither_store_anything_nor_keep_a_site_out(
    enrolment: Enrolment, figure: Figure
) -> None:
    process = psutil.Process(enrolment.process.popen.pid)
    before, cpu = process.memory_info().rss, sum(process.cpu_times()[:2])
    with silent(enrolment.address, 200, "127.0.0.9") as idle:
        made = [handshake(enrolment.address, "127.0.0.10") for _ in range(HASTE)]
        done = [one for one in made if one]
        for one in done:
            one.close()
        took = enrolment.a_site_joins("east")
        open_now = still_open(idle)
    spent = sum(process.cpu_times()[:2]) - cpu
    assert len(done) <= PER_NETWORK
    assert open_now <= OPEN // 2
    assert sorted(file.name for file in enrolment.stored.iterdir()) == STORED
    assert process.memory_info().rss - before < 64 << 20
    members = ask("status", enrolment.process.address, "--data-dir", enrolment.path / "pfl-bootstrap")
    assert members["state"] == "serving"
    figure(
        f"200 silent connections and {HASTE} handshakes at the enrolment",
        "-",
        f"{len(done)} handshakes, {spent:.2f} s of CPU; a site joined in {took:.2f} s",
    )


def test_nonsense_of_strangers_stores_nothing_and_is_not_logged(enrolment: Enrolment, figure: Figure) -> None:
    for number, data in enumerate(TIMES * list(NONSENSE.values())):
        secure = handshake(enrolment.address, f"127.0.1.{number % 4}")
        assert secure
        with secure, suppress(OSError):
            secure.settimeout(15.0)
            secure.sendall(data)
            assert len(secure.recv(1 << 16)) < 300
    assert enrolment.operator.pending() == []
    assert list(enrolment.stored.iterdir()) == []
    assert enrolment.process.output.count("\n") <= 2
    figure(f"{', '.join(NONSENSE)} at the enrolment", "-", "closed or refused, nothing stored")


@pytest.mark.attacks
def test_a_connection_that_asks_nothing_is_closed_after_seconds(enrolment: Enrolment, figure: Figure) -> None:
    began = time.monotonic()
    secure = handshake(enrolment.address, "127.0.0.12")
    assert secure
    with secure:
        secure.settimeout(30.0)
        secure.sendall(b"\x00\x00")  # half of a length
        assert secure.recv(1) == b""
    figure("half a message at the enrolment", "-", f"closed after {time.monotonic() - began:.1f} s")
