"""The memory that a process may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pfl_node.wire.resources import memory

MACHINE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.mark.parametrize(
    ("row", "file"),
    [
        ("0::/", "memory.max"),
        ("0::/swarm/node-1", "swarm/memory.max"),
        ("0::/swarm/node-1", "swarm/node-1/memory.max"),
        ("9:memory:/docker/x", "memory/docker/x/memory.limit_in_bytes"),
        ("9:memory:/docker/x", "memory/memory.limit_in_bytes"),
    ],
)
def test_the_limit_of_a_control_group_counts(tmp_path: Path, row: str, file: str) -> None:
    cgroup, limit = tmp_path / "cgroup", tmp_path / "fs" / file
    cgroup.write_text(f"{row}\n")
    limit.parent.mkdir(parents=True, exist_ok=True)
    limit.write_text(f"{768 << 20}\n")
    assert memory(cgroup, tmp_path / "fs") == 768 << 20


def test_without_a_limit_the_machine_has_the_memory(tmp_path: Path) -> None:
    cgroup = tmp_path / "cgroup"
    cgroup.write_text("0::/\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert memory(cgroup, tmp_path) == MACHINE
    assert memory(tmp_path / "missing", tmp_path) == MACHINE
