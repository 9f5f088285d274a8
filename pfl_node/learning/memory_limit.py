"""The memory that this process may still use."""

from __future__ import annotations

from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
UNKNOWN = 1 << 32  # bytes assumed if the system reports none


def available_memory() -> int:
    """The available bytes of the machine or, if that is less, of the process's control group."""
    limits = [_machine(Path("/proc/meminfo")), _left(CGROUP, "memory.max", "memory.current")]
    limits.append(_left(CGROUP / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"))
    return max(0, min((limit for limit in limits if limit is not None), default=UNKNOWN))


def _machine(path: Path) -> int | None:
    for line in (_text(path) or "").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _left(folder: Path, limit: str, used: str) -> int | None:
    most, now = _text(folder / limit), _text(folder / used)
    if most is None or now is None or not most.isdigit():  # "max": no limit
        return None
    return int(most) - int(now)


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
