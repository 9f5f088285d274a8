"""A Unix socket that only this process can connect to. gRPC's server listens there, behind the listener."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import tempfile
from contextlib import suppress
from pathlib import Path

from pfl_node.errors import Unavailable

LINUX = hasattr(os, "O_PATH")
LONGEST_PATH = 64  # bytes of the directory's path
SEND_BUFFER = 1 << 21  # bytes, if the system allows


class LocalSocket:
    """Use in this order: let the server bind `address`, then `seal`, `connect` any number of times, `close`.

    On Linux the socket has no name once it is sealed, so that nothing is left if the process is killed: it is
    reached through a file descriptor of this process. Elsewhere it stays in a directory of mode 0700.
    """

    def __init__(self) -> None:
        self._directory = _directory()
        self._path = self._directory / "grpc"
        self._descriptor: int | None = None
        self.path = str(self._path)
        self.address = f"unix:{self._path}"

    def seal(self) -> None:
        if LINUX:
            self._descriptor = os.open(self._path, os.O_PATH)
            self._remove()

    @property
    def target(self) -> str:
        """The target that gRPC's client in this process dials, once the socket is sealed."""
        return f"unix:/proc/self/fd/{self._descriptor}" if LINUX else self.address

    def connect(self) -> tuple[str, socket.socket]:
        """A connected socket and the name by which the server sees it. Raises OSError."""
        name = f"pfl-{secrets.token_hex(16)}"
        bound, seen = (f"\0{name}", name) if LINUX else (str(self._directory / name),) * 2
        end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            end.setblocking(False)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
            end.bind(bound)
            end.connect(f"/proc/self/fd/{self._descriptor}" if LINUX else str(self._path))
        except OSError:
            end.close()
            raise
        return seen, end

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        self._remove()

    def _remove(self) -> None:
        with suppress(OSError):
            shutil.rmtree(self._directory)


def _directory() -> Path:
    """Raises Unavailable. The path of a Unix socket has at most 107 bytes."""
    for place in (None, "/tmp", "/dev/shm", "."):
        try:
            made = Path(tempfile.mkdtemp(prefix="pfl-", dir=place))
        except OSError:
            continue
        if len(os.fsencode(made)) <= LONGEST_PATH:
            return made
        made.rmdir()
    raise Unavailable("there is no directory for a socket: set TMPDIR to a writable one with a short path")


def name_of(peer: str) -> str:
    """The name of `connect` in the address that gRPC reports for the caller."""
    return peer.partition(":")[2]
