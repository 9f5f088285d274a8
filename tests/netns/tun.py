"""Network namespaces and TUN devices, by system calls: without `ip`, and without names that could be left behind.

A namespace lives as long as its file or a process in it, a device as long as its file.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

CLONE_NEWNET = 0x40000000
TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
IFF_UP, IFF_RUNNING = 0x1, 0x40
SIOCSIFFLAGS, SIOCSIFADDR, SIOCSIFNETMASK, SIOCSIFMTU, SIOCSIFTXQLEN = 0x8914, 0x8916, 0x891C, 0x8922, 0x8943
MTU = 1500
QUEUE = 5000  # packets that wait for the router

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def enter(namespace: int) -> None:
    """This thread, and what it starts, is in that network namespace from now on."""
    _checked(_libc.setns(namespace, CLONE_NEWNET), "cannot enter a network namespace")


@contextmanager
def new_namespace() -> Iterator[int]:
    """Inside: this thread is in a new one, whose file is told. Afterwards it is where it was."""
    home = here()
    try:
        _checked(_libc.unshare(CLONE_NEWNET), "cannot make a network namespace")
        yield here()
    finally:
        enter(home)
        os.close(home)


def here() -> int:
    """The file of the namespace that this thread is in."""
    return os.open(f"/proc/self/task/{_libc.gettid()}/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def plug(name: str, address: str, mask: str = "255.255.0.0") -> int:
    """A TUN device in this thread's namespace, up, with this IPv4 address. What is sent there is read from the
    file."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            for request, value in (
                (SIOCSIFADDR, _place(address)),
                (SIOCSIFNETMASK, _place(mask)),
                (SIOCSIFMTU, struct.pack("i12x", MTU)),
                (SIOCSIFTXQLEN, struct.pack("i12x", QUEUE)),
                (SIOCSIFFLAGS, struct.pack("H14x", IFF_UP | IFF_RUNNING)),
            ):
                fcntl.ioctl(control, request, struct.pack("16s16s8x", name.encode(), value))
    except BaseException:
        os.close(device)
        raise
    return device


def wake_loopback() -> None:
    """A new namespace has one that is down."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        wanted = struct.pack("16sH22x", b"lo", IFF_UP | IFF_RUNNING)
        fcntl.ioctl(control, SIOCSIFFLAGS, wanted)


def _place(address: str) -> bytes:
    return struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(address))
