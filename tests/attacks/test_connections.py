"""Connections that never send a byte."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from tests.attacks.conftest import Figure
from tests.attacks.crowd import limit_files, silent
from tests.e2e.processes import Process, ask, until

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
