"""Which peers a node accepts: CA or pinned ids, allow-list and revocation list, reloaded when they change."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pfl_node.errors import ConfigError, PflError, Reason, Refused
from pfl_node.security.certificate import ID, ID_BYTES, Certificate
from pfl_node.security.credentials import Credentials, load_credentials
from pfl_node.security.key_permissions import exposed_key
from pfl_node.security.tls_files import TlsFiles, read
from pfl_node.types import PeerId

log = logging.getLogger(__name__)

ALLOW_LIST, REVOKED_LIST = "allow-list", "list of revoked ids"
EXPIRES_SOON = timedelta(days=14)  # before its certificate expires, a node logs warnings
WARN_INTERVAL = timedelta(hours=12)

Stamp = tuple[int, int, int]


def now() -> datetime:
    return datetime.now(UTC)


def parse_ids(text: str, where: str) -> frozenset[PeerId]:
    """One id at the start of each line; the rest of the line is ignored, and `#` begins a comment."""
    found = set()
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if not ID.fullmatch(words[0].lower()):
            raise ConfigError(
                f"{where}, line {number}: {words[0]!r} is not an id: {2 * ID_BYTES} hexadecimal digits, "
                "as printed by `pfl-node identity`"
            )
        found.add(PeerId(words[0].lower()))
    return frozenset(found)


def read_ids(path: Path, what: str) -> frozenset[PeerId] | None:
    """The ids in a file; None if it does not exist."""
    return parse_ids(read(path, what).decode("utf-8", "replace"), str(path)) if path.exists() else None


class Trust:
    """The current state. `refresh` loads changed files; if one is invalid, the previous state stays in force."""

    def __init__(self, files: TlsFiles, *, clock: Callable[[], datetime] = now) -> None:
        self.files = files
        self.generation = 0  # number of renewals of our own certificate
        self._clock = clock
        self._stamps: dict[Path, Stamp | None] = {}
        self._warned = datetime.min.replace(tzinfo=UTC)
        self._changed()
        self.credentials: Credentials = load_credentials(files)
        self.allow: frozenset[PeerId] | None = read_ids(files.allow, ALLOW_LIST)
        self.revoked: frozenset[PeerId] = read_ids(files.revoked, REVOKED_LIST) or frozenset()

    def warn_of_exposed_key(self) -> None:
        if exposed := exposed_key(self.files.key):
            log.warning("%s", exposed)

    @property
    def me(self) -> PeerId:
        return self.credentials.id

    def permit(self, peer: PeerId) -> None:
        """Raises Refused if the id is revoked or not on the allow-list."""
        if peer in self.revoked:
            raise Refused(Reason.REVOKED, f"{peer} is revoked")
        if self.allow is not None and peer not in self.allow and peer != self.me:
            raise Refused(Reason.NOT_ALLOWED, f"{peer} is not on the allow-list")

    def check(self, certificate: Certificate) -> None:
        """Raises Refused. TLS has verified the issuer; the rest may have changed since the connection was made."""
        if certificate.alias:
            text = f"the certificate says {certificate.alias}, but its key is {certificate.id}"
            raise Refused(Reason.IMPOSTOR, text)
        if certificate.expired(self._clock()):
            text = f"the certificate of {certificate.id} expired on {_minute(certificate.not_after)}"
            raise Refused(Reason.EXPIRED, text)
        self.permit(certificate.id)

    def refresh(self) -> list[str]:
        """The kinds of files that were reloaded. Never raises."""
        self._warn_of_expiry()
        changed, files, reloaded = self._changed(), self.files, []
        if changed & {files.key, files.cert, files.ca} and self._renew():
            reloaded.append("certificate")
        if files.allow in changed and (ids := _reload(files.allow, ALLOW_LIST)) is not None:
            self.allow = ids
            reloaded.append("allow-list")
        if files.revoked in changed and (ids := _reload(files.revoked, REVOKED_LIST)) is not None:
            self.revoked = ids
            reloaded.append("revoked")
        return reloaded

    def _renew(self) -> bool:
        try:
            fresh = load_credentials(self.files)
        except PflError as error:
            log.warning("the new certificate is not used: %s", error)
            return False
        if fresh.id != self.me:
            log.warning("the new certificate is not used: it is for the id %s, this node is %s", fresh.id, self.me)
            return False
        self.credentials = fresh
        self.generation += 1
        self.warn_of_exposed_key()
        log.info("new certificate %s", fresh.certificate)
        return True

    def _changed(self) -> set[Path | None]:
        """The files that changed since the last call."""
        files = self.files
        found = {p: _stamp(p) for p in (files.key, files.cert, files.ca, files.allow, files.revoked) if p}
        changed: set[Path | None] = {path for path, stamp in found.items() if stamp != self._stamps.get(path)}
        self._stamps = found
        return changed

    def _warn_of_expiry(self) -> None:
        mine, moment = self.credentials.certificate, self._clock()
        soon = min(EXPIRES_SOON, (mine.not_after - mine.not_before) / 4)
        if mine.not_after - moment < soon and moment - self._warned > WARN_INTERVAL:
            self._warned = moment
            log.warning("this node's certificate expires on %s; issue a new one", _minute(mine.not_after))


def _reload(path: Path, what: str) -> frozenset[PeerId] | None:
    """The ids, or None to keep the list in force. A deleted file does not lift a restriction."""
    try:
        ids = read_ids(path, what)
    except PflError as error:
        log.warning("the %s stays in force: %s", what, error)
        return None
    if ids is None:
        log.warning("the %s %s was deleted; it stays in force", what, path)
    else:
        log.info("%s: %d ids", what, len(ids))
    return ids


def _stamp(path: Path) -> Stamp | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _minute(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"
