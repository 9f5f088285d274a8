"""The open files and the memory that this process may use. Limits on callers are derived from them."""

from __future__ import annotations

import os
import resource
from pathlib import Path

CGROUP = Path("/proc/self/cgroup")
MOUNT = Path("/sys/fs/cgroup")
UNLIMITED_FILES = 1 << 20


def open_files() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return UNLIMITED_FILES if soft == resource.RLIM_INFINITY else soft


def memory(cgroup: Path = CGROUP, mount: Path = MOUNT) -> int:
    """Bytes: the machine's memory or, if lower, the limit of the control group, of version 1 or 2."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *_limits(cgroup, mount)])


def _limits(cgroup: Path, mount: Path) -> list[int]:
    """The limits of the group and of all groups that contain it. In a container the group is usually the root."""
    try:
        rows = cgroup.read_text().splitlines()
    except OSError:
        return []
    files = [mount / "memory.max", mount / "memory" / "memory.limit_in_bytes"]
    for row in rows:
        _, controllers, path = row.split(":", 2)
        if not controllers:
            folders, root, name = Path(path.lstrip("/")), mount, "memory.max"
        elif "memory" in controllers.split(","):
            folders, root, name = Path(path.lstrip("/")), mount / "memory", "memory.limit_in_bytes"
        else:
            continue
        files += [root / folder / name for folder in (folders, *folders.parents)]
    return [int(text) for file in files if (text := _text(file)).isdigit()]


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
