"""Learns from gRPC's log why TLS handshakes of incoming connections fail: gRPC has no callback for it.

gRPC logs these failures at level INFO to file descriptor 2 (grpc/grpc#38058), which becomes a pipe here. Lines of
gRPC are parsed, all others are forwarded; Python's own stderr does not pass through the pipe.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable

from pfl_node.errors import Reason

LINE = re.compile(rb"^[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ [\w.]+:\d+\] ")
FAILED = re.compile(r"Handshake failed with error \w+: (.*)")
MEANINGS = (
    ("PEER_DID_NOT_RETURN_A_CERTIFICATE", Reason.REJECTED, "it showed no certificate"),
    ("certificate has expired", Reason.EXPIRED, "its certificate expired"),
    ("certificate is not yet valid", Reason.EXPIRED, "its certificate is not valid yet; is a clock wrong?"),
    ("self signed certificate", Reason.OTHER_CA, "its certificate is of another CA"),
    ("issuer certificate", Reason.OTHER_CA, "its certificate is of another CA"),
    ("signature failure", Reason.OTHER_CA, "its certificate is of another CA"),
    ("WRONG_VERSION_NUMBER", Reason.NO_TLS, "it does not speak TLS"),
    ("HTTP_REQUEST", Reason.NO_TLS, "it does not speak TLS"),
)


def meaning(line: str) -> tuple[Reason, str] | None:
    """The handshake failure in a line of gRPC's log; None if the line reports something else."""
    found = FAILED.search(line)
    if found is None:
        return None
    text = found[1].strip()
    return next(
        ((reason, words) for sign, reason, words in MEANINGS if sign in text),
        (Reason.REJECTED, f"the handshake failed ({text.rpartition('OPENSSL_internal:')[2]})"),
    )


class HandshakeLog:
    """Create it before gRPC is imported, because gRPC then reads its verbosity, and before logging is configured.
    `on_failure` and `forward` are called in a separate thread."""

    def __init__(self) -> None:
        self.on_failure: Callable[[Reason, str], None] | None = None
        self.forward: Callable[[str], None] | None = None  # None: to stderr, unchanged
        self._stderr = os.dup(2)
        ours, theirs = os.pipe()
        os.dup2(theirs, 2)
        os.close(theirs)
        sys.stderr = os.fdopen(os.dup(self._stderr), "w", buffering=1)
        os.environ["GRPC_VERBOSITY"] = "INFO"
        threading.Thread(target=self._read, args=(ours,), name="handshake-log", daemon=True).start()

    def _read(self, source: int) -> None:
        with os.fdopen(source, "rb") as lines:
            for line in lines:
                if not LINE.match(line):
                    self._forward(line)
                elif (found := meaning(line.decode("utf-8", "replace"))) and self.on_failure:
                    self.on_failure(*found)
                elif line[:1] in b"EF" and not found:
                    self._forward(line)

    def _forward(self, line: bytes) -> None:
        if self.forward:
            self.forward(line.decode("utf-8", "replace").rstrip())
        else:
            os.write(self._stderr, line)
