"""A node's data directory: its identity, and a lock against a second user."""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
from contextlib import suppress
from dataclasses import asdict, dataclass
from io import FileIO
from pathlib import Path
from typing import Self

import xxhash

from pfl_node.errors import ConfigError, StoreError, Unavailable
from pfl_node.store.atomic import sync_directory, write_atomic
from pfl_node.types import PeerId

DEFAULT_ROOT = Path("pfl-data")
JOURNAL = "journal.jsonl"
MODEL = "model.safetensors"
BEST_MODEL = "best.safetensors"
SETTINGS = "settings.toml"  # with which the node was last started
USED_UP = 1 << 52  # an incarnation that no other member would believe


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """The id survives restarts and changes of address; the incarnation grows with every start."""

    id: PeerId
    incarnation: int


class DataDir:
    """An open data directory, locked until it is closed."""

    def __init__(self, path: Path, lock: FileIO) -> None:
        self.path = path
        self._lock = lock
        try:
            self.identity = self._next_identity()
        except BaseException:
            lock.close()
            raise

    @classmethod
    def open(cls, path: Path | None) -> Self:
        """The given directory; None: the first unlocked ./pfl-data/node-N, so that a restarted node finds its own
        again."""
        if path is not None:
            lock = _lock(path)
            if lock is None:
                raise Unavailable(
                    f"data directory {path} is in use by another node (pid {_holder(path)}); "
                    "give this node its own with --data-dir"
                )
            return cls(path, lock)
        for n in range(1, 10_000):
            candidate = DEFAULT_ROOT / f"node-{n}"
            if lock := _lock(candidate):
                return cls(candidate, lock)
        raise ConfigError(f"no free directory under {DEFAULT_ROOT}; give one with --data-dir")

    @property
    def slot(self) -> int:
        """N-1 for a directory named `…-N`."""
        if found := re.search(r"-([1-9]\d*)$", self.path.resolve().name):
            return int(found[1]) - 1
        raise ConfigError(f"task.index = slot, but data directory {self.path} has no number: name it like node-1")

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint.safetensors"

    @property
    def journal(self) -> Path:
        return self.path / JOURNAL

    @property
    def model(self) -> Path:
        return self.path / MODEL

    @property
    def best(self) -> Path:
        return self.path / BEST_MODEL

    @property
    def settings(self) -> Path:
        return self.path / SETTINGS

    def keep_incarnation(self, incarnation: int) -> None:
        """The node raised its incarnation at run time; the next start continues above it."""
        if incarnation > self.identity.incarnation:
            self.identity = self._write(NodeIdentity(self.identity.id, incarnation))

    def adopt(self, id: PeerId) -> None:
        """Use the id of the node's key from now on, instead of a random one."""
        if id != self.identity.id:
            self.identity = self._write(NodeIdentity(id, self.identity.incarnation))

    def close(self) -> None:
        self._lock.close()

    def _next_identity(self) -> NodeIdentity:
        old = _read_identity(self._file)
        if old is None:
            return self._write(NodeIdentity(PeerId(secrets.token_hex(8)), 1))
        # Starting again from 1 works because the others forget the old incarnation after about an hour.
        return self._write(NodeIdentity(old.id, old.incarnation + 1 if old.incarnation < USED_UP else 1))

    def _write(self, identity: NodeIdentity) -> NodeIdentity:
        row = {**asdict(identity), "checksum": _checksum(identity)}
        write_atomic(self._file, json.dumps(row).encode() + b"\n", what="identity")
        return identity

    @property
    def _file(self) -> Path:
        return self.path / "identity.json"


def _lock(path: Path) -> FileIO | None:
    try:
        if not path.exists():
            path.mkdir(parents=True, exist_ok=True)
            sync_directory(path.parent)
        file = (path / "lock").open("ab", buffering=0)
    except OSError as error:
        raise Unavailable(f"cannot use data directory {path}: {error.strerror or error}") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    with suppress(OSError):  # the pid is informative; the lock works on a full disk too
        file.truncate(0)
        file.write(str(os.getpid()).encode())
    return file


def _holder(path: Path) -> str:
    return (path / "lock").read_text() or "unknown"


def _checksum(identity: NodeIdentity) -> str:
    return xxhash.xxh3_64_hexdigest(f"{identity.id} {identity.incarnation}".encode())


def _read_identity(file: Path) -> NodeIdentity | None:
    try:
        data = json.loads(file.read_bytes())
        found = NodeIdentity(PeerId(str(data["id"])), int(data["incarnation"]))
        if data.get("checksum", _checksum(found)) != _checksum(found):  # older files have none
            raise ValueError("its checksum does not match")
        return found
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"cannot read {file}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"{file} is damaged ({error}); move it away to start with a new identity, or restore it from a backup"
        ) from error
