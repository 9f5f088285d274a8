"""Why a TLS handshake failed at this side's door, overheard from gRPC, which tells it to nobody but stderr.

File descriptor 2 becomes a pipe; what Python writes to stderr does not pass through it. Lines of gRPC are read,
all others are handed on.
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

Told = Callable[[Reason, str], None]


def meaning(line: str) -> tuple[Reason, str] | None:
    """A line of gRPC's log as reason and words; None: it is about something else."""
    found = FAILED.search(line)
    if found is None:
        return None
    said = found[1].strip()
    return next(
        ((reason, words) for sign, reason, words in MEANINGS if sign in said),
        (Reason.REJECTED, f"the handshake failed ({said.rpartition('OPENSSL_internal:')[2]})"),
    )


class HandshakeLog:
    """Begin before gRPC is loaded, when it reads how much to say, and before logs are set up. `tell` is called in
    a thread of its own."""

    def __init__(self) -> None:
        self.tell: Told | None = None
        self.hand_on: Callable[[str], None] | None = None  # None: as it is, to stderr
        self._stderr = os.dup(2)
        ours, theirs = os.pipe()
        os.dup2(theirs, 2)
        os.close(theirs)
        sys.stderr = os.fdopen(os.dup(self._stderr), "w", buffering=1)
        os.environ["GRPC_VERBOSITY"] = "INFO"
        threading.Thread(target=self._listen, args=(ours,), name="overheard", daemon=True).start()

    def _listen(self, source: int) -> None:
        with os.fdopen(source, "rb") as lines:
            for line in lines:
                if not LINE.match(line):
                    self._pass(line)
                elif (found := meaning(line.decode("utf-8", "replace"))) and self.tell:
                    self.tell(*found)
                elif line[:1] in b"EF" and not found:
                    self._pass(line)

    def _pass(self, line: bytes) -> None:
        if self.hand_on:
            self.hand_on(line.decode("utf-8", "replace").rstrip())
        else:
            os.write(self._stderr, line)
