"""A full neighbour table of the host is told once, with what to do."""

from __future__ import annotations

import logging

import pytest

from pfl_node.membership.kernel_drops import KernelDrops, dropped

TEXT = """Ip: Forwarding DefaultTTL
Ip: 1 64
Udp: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors InCsumErrors IgnoredMulti MemErrors
Udp: 61 0 0 75 0 {} 0 0 0
"""


def test_the_counter_is_found_by_its_name() -> None:
    assert dropped(TEXT.format(42)) == 42
    assert dropped("") == dropped("Udp: NoPorts\nUdp: 3\n") == 0


def test_drops_before_the_start_do_not_count_and_many_since_then_are_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen = [100]
    drops = KernelDrops(lambda: TEXT.format(seen[0]))
    with caplog.at_level(logging.WARNING):
        drops.check()
        seen[0] = 105
        drops.check()
        assert caplog.messages == []
        for seen[0] in (150, 300):
            drops.check()
    assert len(caplog.messages) == 1
    assert "sysctl -w net.ipv4.neigh.default.gc_thresh2=8192" in caplog.messages[0]
