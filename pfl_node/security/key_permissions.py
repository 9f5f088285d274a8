"""Finds private keys that other users of the machine can read."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path

# The rule of PostgreSQL's server for ssl_key_file, as a warning. A key of this process's own user: no access for
# group and others, as OpenSSH requires. A key of another user, in practice root: this process reads it through its
# group, so the group may read; such keys come from the system (0640) and from Kubernetes with fsGroup (0440).
# Others may not read it either: Kubernetes and Docker mount secrets with 0644 and 0444 unless a mode is given; the
# remedy is to give one. PostgreSQL refuses to start, OpenSSH ignores the modes of other users' keys, etcd checks
# nothing. A warning suits both a shared machine and a container, in which there may be no other user.
OWN, OTHERS = 0o077, 0o037


@dataclass(frozen=True, slots=True)
class ExposedKey:
    path: Path
    mode: int
    remedy: str

    @property
    def text(self) -> str:
        return f"other users can read the private key {self.path} (mode {self.mode:04o})"

    def __str__(self) -> str:
        return f"{self.text}: {self.remedy}"


def exposed_key(path: Path) -> ExposedKey | None:
    """None if the file is private, or does not exist; on Windows always, where modes say nothing about access."""
    if os.name == "nt":
        return None
    try:
        found, system = path.stat(), os.statvfs(path)
    except OSError:
        return None
    own = found.st_uid == os.geteuid()
    if not found.st_mode & (OWN if own else OTHERS):
        return None
    remedy = f"chmod {600 if own else 640} {shlex.quote(str(path))}"
    if system.f_flag & os.ST_RDONLY:
        remedy = f"mount it with mode {'0400' if own else '0440'} (secrets of Kubernetes: defaultMode)"
    return ExposedKey(path, found.st_mode & 0o777, remedy)
