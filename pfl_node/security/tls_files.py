"""The paths of a node's key, certificate, CA and id lists: given one by one, or by name in its directory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from pfl_node.errors import ConfigError, StoreError
from pfl_node.store.atomic import sync_directory

KEY, CERT, OWN, CA, ALLOW, REVOKED = "key.pem", "cert.pem", "own.pem", "ca.pem", "allow", "revoked"


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """The files need not exist; `ca` is None if there is no CA."""

    key: Path
    cert: Path
    ca: Path | None
    allow: Path
    revoked: Path
    directory: Path

    @property
    def pinned(self) -> bool:
        """No CA: only the ids on the allow-list are trusted."""
        return self.ca is None

    @classmethod
    def find(
        cls,
        directory: Path | None,
        *,
        ca: Path | None = None,
        cert: Path | None = None,
        key: Path | None = None,
        allow: Path | None = None,
        revoked: Path | None = None,
    ) -> TlsFiles:
        """Raises ConfigError if a required file is neither given nor in the directory."""
        if directory is None and (key is None or cert is None):
            raise ConfigError(
                "give --data-dir DIR, where `pfl-node ca init` and `pfl-node ca issue --data-dir DIR` put a "
                "certificate (or --key, --cert and --ca), or add --insecure if you trust this network"
            )
        place = directory or Path(".")
        if ca is None and directory is not None and exists(directory / CA):
            ca = directory / CA
        return cls(
            key=key or place / KEY,
            cert=cert or place / (OWN if ca is None else CERT),
            ca=ca,
            allow=allow or place / ALLOW,
            revoked=revoked or place / REVOKED,
            directory=place,
        )


def write_private(path: Path, data: bytes) -> None:
    """Write a file that only its owner may ever read. Raises StoreError if it exists."""
    temp = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.link(temp, path)
        sync_directory(path.parent)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        temp.unlink(missing_ok=True)


def exists(path: Path) -> bool:
    """Raises ConfigError if its directory cannot be searched: a node's directory is for its own user only."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        hint = f"run the command as the user who owns {path.parent}"
        raise ConfigError(f"cannot read {path}: {error.strerror or error}; {hint}") from error
    return True


def read(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the {what} {path}: {error.strerror or error}") from error
