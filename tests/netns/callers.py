"""Who is at the other end of a connection on this machine: the process that holds it, as /proc tells. No root."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path


def holder(address: tuple[str, int], pids: Mapping[int, str]) -> str | None:
    """The name of the process, among these, whose TCP socket has this IPv4 address; None: of none of them."""
    inode = _inode(address)
    if inode is None:
        return None
    wanted = f"socket:[{inode}]"
    return next((name for pid, name in pids.items() if wanted in _open_files(pid)), None)


def _inode(address: tuple[str, int]) -> str | None:
    host, port = address
    # /proc has the address as a number of this machine's byte order.
    written = f"{int.from_bytes(socket.inet_aton(host), 'little'):08X}:{port:04X}"
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if words[1] == written:
            return words[9]
    return None


def _open_files(pid: int) -> set[str]:
    found = set()
    try:
        for entry in os.scandir(f"/proc/{pid}/fd"):
            found.add(os.readlink(entry.path))
    except OSError:  # it ends just now
        pass
    return found
