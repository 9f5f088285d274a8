"""Connections that never send a byte."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from pathlib import Path

from pfl_node.security.credentials import Credentials, load_credentials
from pfl_node.security.handshake import read_certificate
from pfl_node.wire.channels import CONNECT_TIMEOUT
from tests.attacks.conftest import Figure
from tests.attacks.crowd import limit_files, silent
from tests.e2e.processes import Process, ask, until
from tests.identities import Site

Start = Callable[..., Process]
WORDS = ("--listen", "127.0.0.1:0", "--policy", "local", "--log-format", "json")
SETS = ("--set", "task.samples=40", "--set", "start.wait=0", "--set", "store.checkpoint_every=1")


def test_more_silent_connections_than_files_do_not_end_a_node(start: Start, figure: Figure) -> None:
    node = start("pfl_node", *WORDS, *SETS)
    address = node.address
    until(lambda: '"event": "round"' in node.output, node)
    limit_files(node, 256)
    with silent(address, 300):
        until(lambda: "was not written" in node.output or None, node)
        time.sleep(2)
        assert node.popen.poll() is None, node.output
    until(lambda: ask("status", address)["written"]["failed_checkpoints"] == 0 or None, node)
    node.popen.send_signal(signal.SIGTERM)
    assert node.wait() == 0
    figure("more silent connections than open files", "exit 1 within 5 s", "the node runs on, exit 0 on SIGTERM")


def test_silent_connections_leave_a_tls_node_reachable(start: Start, figure: Figure, tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.member("victim")
    friend = load_credentials(site.member("friend"))
    node = start("bootstrap", "--data-dir", "victim", "--listen", "127.0.0.1:0", "--tls", "--log-format", "json")
    with silent(node.address, 3500):
        took = [_seconds(node.address, friend) for _ in range(20)]
    figure("3,500 silent connections to a TLS node", "handshakes time out", f"handshake {max(took) * 1000:.0f} ms")


def _seconds(address: str, friend: Credentials) -> float:
    """Raises PeerGone where a peer would give up."""
    began = time.monotonic()
    asyncio.run(read_certificate(address, friend, CONNECT_TIMEOUT))
    return time.monotonic() - began
