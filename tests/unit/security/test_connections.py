"""Refused connections in the kernel's table, and handshake failures in gRPC's log."""

from __future__ import annotations

import socket

import pytest

from pfl_node.errors import Reason
from pfl_node.security.connections import PAUSE, TABLES, ConnectionTable
from pfl_node.security.handshake_log import LINE, meaning

GRPC = "I1116 09:12:15.515498   20152 ssl_transport_security.cc:2563] Handshake failed with error SSL_ERROR_SSL: "


@pytest.mark.skipif(not TABLES[0].exists(), reason="no such table on this system")
def test_the_address_of_a_short_connection_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    moment = 100.0
    monkeypatch.setattr("pfl_node.security.connections.monotonic", lambda: moment)
    monkeypatch.setattr("pfl_node.security.connections.READ_LIMIT", 1 << 30)  # other tests may fill the table
    with socket.create_server(("127.0.0.1", 0)) as server:
        connections = ConnectionTable(server.getsockname()[1])
        stays = socket.create_connection(server.getsockname())
        kept, _ = server.accept()
        with socket.create_connection(server.getsockname()) as goes:
            name = "{}:{}".format(*goes.getsockname())
            connections.look()
            server.accept()[0].close()
        moment += PAUSE
        assert connections.closed() == [name]
        moment += PAUSE
        assert connections.closed() == []
        kept.close()
        stays.close()


@pytest.mark.parametrize(
    ("said", "reason", "words"),
    [
        ("PEER_DID_NOT_RETURN_A_CERTIFICATE: x", Reason.REJECTED, "it showed no certificate"),
        ("CERTIFICATE_VERIFY_FAILED: certificate has expired", Reason.EXPIRED, "its certificate expired"),
        (
            "CERTIFICATE_VERIFY_FAILED: self signed certificate",
            Reason.OTHER_CA,
            "its certificate is of another CA",
        ),
        ("WRONG_VERSION_NUMBER: x", Reason.NO_TLS, "it does not speak TLS"),
        ("NO_SHARED_CIPHER: x", Reason.REJECTED, "the handshake failed (NO_SHARED_CIPHER: x)"),
    ],
)
def test_handshake_failures_in_grpcs_log_are_parsed(said: str, reason: Reason, words: str) -> None:
    line = f"{GRPC}error:1000007d:SSL routines:OPENSSL_internal:{said}\n"
    assert LINE.match(line.encode())
    assert meaning(line) == (reason, words)


def test_other_log_lines_are_not_handshake_failures() -> None:
    assert meaning("E1116 09:12:15.507628   20152 call.cc:1] something else") is None
    assert not LINE.match(b"Traceback (most recent call last):\n")
