"""Many connections that send nothing, and a limit on open files."""

from __future__ import annotations

import resource
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from pfl_node.address import parse_address
from tests.e2e.processes import Process


@contextmanager
def silent(address: str, count: int) -> Iterator[list[socket.socket]]:
    """Open `count` TCP connections; those that the kernel does not accept are left out."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        opened = []
        for _ in range(count):
            one = stack.enter_context(socket.socket(socket.AF_INET))
            one.settimeout(1.0)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # no TIME_WAIT afterwards
            try:
                one.connect(parse_address(address))
            except OSError:
                continue
            opened.append(one)
        yield opened


def limit_files(process: Process, files: int) -> None:
    """Lower the limit on open files of a running process."""
    resource.prlimit(process.popen.pid, resource.RLIMIT_NOFILE, (files, files))
