"""Connections that send nothing, or a byte now and then, and a limit on open files."""

from __future__ import annotations

import resource
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from pfl_node.address import parse_address
from tests.e2e.processes import Process

INTERVAL = 0.5  # seconds between the bytes of a slow connection


@contextmanager
def idle(address: str, count: int, *, slowly: bytes = b"") -> Iterator[list[socket.socket]]:
    """Open `count` TCP connections; those that the kernel does not accept are left out. With `slowly`, each sends
    one of these bytes at a time, in turns."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    done = threading.Event()
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        opened = list(_opened(stack, address, count))
        sender = threading.Thread(target=_send_slowly, args=(opened, slowly, done))
        sender.start()
        stack.callback(sender.join)
        stack.callback(done.set)
        yield opened


def _opened(stack: ExitStack, address: str, count: int) -> Iterator[socket.socket]:
    host, port = parse_address(address)
    for _ in range(count):
        one = stack.enter_context(socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET))
        one.settimeout(1.0)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # no TIME_WAIT afterwards
        try:
            one.connect((host, port))
        except OSError:
            continue
        yield one


def _send_slowly(connections: list[socket.socket], data: bytes, done: threading.Event) -> None:
    for n in range(len(data)):
        for one in connections:
            with suppress(OSError):
                one.send(data[n : n + 1])
        if done.wait(INTERVAL):
            return


def still_open(connections: list[socket.socket]) -> int:
    return sum(_is_open(one) for one in connections)


def _is_open(one: socket.socket) -> bool:
    try:
        one.setblocking(False)
        while one.recv(1 << 16):
            pass
        return False
    except BlockingIOError:
        return True
    except OSError:
        return False


def limit_files(process: Process, files: int) -> None:
    """Lower the limit on open files of a running process."""
    resource.prlimit(process.popen.pid, resource.RLIMIT_NOFILE, (files, files))
