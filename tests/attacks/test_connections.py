"""Connections that send nothing, or a byte now and then."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pfl_node.security.credentials import Credentials, load_credentials
from pfl_node.security.handshake import read_certificate
from pfl_node.security.requirements import prepare
from pfl_node.security.tls_files import TlsFiles
from pfl_node.wire.channels import CONNECT_TIMEOUT
from pfl_node.wire.listener import HANDSHAKE, SWEEP
from tests.attacks.conftest import Figure
from tests.attacks.idle_connections import idle, limit_files, still_open
from tests.e2e.processes import Process, ask, until
from tests.fuzz import http2
from tests.identities import Site, fresh_id, pinned

Start = Callable[..., Process]
WORDS = ("--policy", "local", "--log-format", "json")
SETS = ("--set", "task.samples=40", "--set", "start.wait=0", "--set", "store.checkpoint_every=1")
CLIENT_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(50)  # the beginning
HTTP2 = http2.PREFACE + http2.frame(http2.SETTINGS)
SECONDS = 4.0


@pytest.mark.parametrize(
    ("how", "host", "slowly"),
    [("silent", "127.0.0.1", b""), ("slow, IPv6", "[::1]", HTTP2)],
)
def test_more_connections_than_files_do_not_stop_a_node(
    start: Start, figure: Figure, how: str, host: str, slowly: bytes
) -> None:
    node = start("pfl_node", "--listen", f"{host}:0", *WORDS, *SETS)
    address = node.address
    until(lambda: '"event": "round"' in node.output, node)
    limit_files(node, 256)
    before = int(ask("status", address)["round"])
    with idle(address, 300, slowly=slowly):
        time.sleep(SECONDS)
        status = ask("status", address)
        assert node.popen.poll() is None, node.output
        assert status["written"]["failed_checkpoints"] == 0
        assert status["round"] > before
    node.popen.send_signal(signal.SIGTERM)
    assert node.wait() == 0
    rounds = (status["round"] - before) / SECONDS
    figure(f"300 {how} connections, 256 open files", "exit 1 within 5 s", f"{rounds:.0f} rounds/s, exit 0")


@pytest.mark.attacks
@pytest.mark.parametrize("trust", ["CA", "pinned ids"])
@pytest.mark.parametrize(("how", "slowly"), [("silent", b""), ("slow", CLIENT_HELLO)])
def test_idle_connections_leave_a_tls_node_reachable(
    start: Start, figure: Figure, tmp_path: Path, trust: str, how: str, slowly: bytes
) -> None:
    member = load_credentials(_two_members(tmp_path, pins=trust == "pinned ids"))
    node = start("bootstrap", "--data-dir", "victim", "--listen", "127.0.0.1:0", "--tls", "--log-format", "json")
    with idle(node.address, 3500, slowly=slowly) as connections:
        took = sorted(_handshake_seconds(node.address, member) for _ in range(20))
        until(lambda: not still_open(connections), node)
    slowest = f"handshake {took[10] * 1000:.0f} ms, at most {took[-1] * 1000:.0f}"
    figure(f"3,500 {how} connections to a TLS node, {trust}", "handshakes time out", slowest)


def test_a_connection_that_shows_nothing_is_closed_after_seconds(start: Start, figure: Figure) -> None:
    """Also one that speaks HTTP/2 but calls nothing."""
    node = start("bootstrap", "--listen", "127.0.0.1:0", "--log-format", "json")
    with idle(node.address, 20) as connections:
        for one in connections:
            one.send(HTTP2)
        began = time.monotonic()
        until(lambda: not still_open(connections), node)
        figure("HTTP/2 without a call, no TLS", "open for ever", f"closed after {time.monotonic() - began:.1f} s")
    assert HANDSHAKE + SWEEP < CONNECT_TIMEOUT + 1.0


def _two_members(path: Path, *, pins: bool) -> TlsFiles:
    """The files of a member that the victim accepts."""
    if not pins:
        site = Site(path)
        site.member("victim")
        return site.member("friend")
    ids = [fresh_id(path / name) for name in ("victim", "friend")]
    pinned(path / "victim", allow=ids)
    files = pinned(path / "friend", allow=ids)
    prepare(files, "friend")
    return files


def _handshake_seconds(address: str, member: Credentials) -> float:
    """Raises PeerGone where a peer would give up."""
    began = time.monotonic()
    asyncio.run(read_certificate(address, member, CONNECT_TIMEOUT))
    return time.monotonic() - began
