"""The text of a connection that could not be opened: what the operator sees of a wrong address or a firewall."""

from __future__ import annotations

import asyncio
import errno
import socket
from pathlib import Path

import pytest

from pfl_node.errors import PeerGone
from pfl_node.security.credentials import Credentials, load_credentials
from pfl_node.security.handshake import read_certificate
from tests.identities import Site


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(errno.EHOSTUNREACH, "Connect call failed ('192.0.2.1', 7946)"), "No route to host"),
        (OSError(errno.ENETUNREACH, "Connect call failed ('192.0.2.1', 7946)"), "Network is unreachable"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "…"), "nothing listens there (connection refused)"),
        (
            OSError("Multiple exceptions: [Errno 111] Connect call failed ('::1', 1, 0, 0), [Errno 111] …"),
            "none of its addresses accepts a connection",
        ),
        (ConnectionResetError(errno.ECONNRESET, "…"), "it closed the connection during the TLS handshake"),
        (socket.gaierror(socket.EAI_NONAME, "…"), "no such host"),
        (OSError(errno.EMFILE, "Too many open files"), "Too many open files"),
        (OSError(errno.ETIMEDOUT, "Connect call failed ('192.0.2.1', 7946)"), "Connection timed out"),
    ],
)
def test_the_text_of_a_failed_connection_names_the_reason(tmp_path: Path, error: OSError, text: str) -> None:
    async def connect() -> socket.socket:
        raise error

    with pytest.raises(PeerGone) as raised:
        asyncio.run(read_certificate("192.0.2.1:7946", _credentials(tmp_path), 5.0, connect))
    assert raised.value.text == text


def test_a_server_that_does_not_answer_is_reported_with_the_timeout(tmp_path: Path) -> None:
    async def connect() -> socket.socket:
        await asyncio.Event().wait()
        raise AssertionError

    with pytest.raises(PeerGone, match=r"no answer within 0.01 s \(TLS handshake\)"):
        asyncio.run(read_certificate("192.0.2.1:7946", _credentials(tmp_path), 0.01, connect))


def _credentials(path: Path) -> Credentials:
    return load_credentials(Site(path).member("ann"))
