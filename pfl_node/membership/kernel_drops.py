"""Datagrams that the kernel has dropped: its neighbour table is shared by all containers and may be full."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger(__name__)

COUNTERS = Path("/proc/net/snmp")  # counters of this network namespace
MANY = 20  # dropped datagrams since the last check that cause a warning
HINT = "on the host: sysctl -w net.ipv4.neigh.default.gc_thresh2=8192 net.ipv4.neigh.default.gc_thresh3=16384"


def dropped(counters: str) -> int:
    """Datagrams that were not sent, in the text of /proc/net/snmp; 0: unknown. UDP reports no error for them."""
    rows = [line.split() for line in counters.splitlines() if line.startswith("Udp: ")]
    if len(rows) != 2 or "SndbufErrors" not in rows[0]:
        return 0
    return int(rows[1][rows[0].index("SndbufErrors")])


def _read() -> str:
    try:
        return COUNTERS.read_text()
    except OSError:
        return ""


class KernelDrops:
    """Warns once that members may seem to be silent because of the host's kernel."""

    def __init__(self, read: Callable[[], str] = _read) -> None:
        self._read = read
        self._before = dropped(read())
        self._warned = False

    def check(self) -> None:
        if self._warned or dropped(self._read()) - self._before < MANY:
            return
        self._warned = True
        log.warning("members seem silent because the kernel drops packets: its neighbour table is full; %s", HINT)
