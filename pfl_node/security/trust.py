"""Whom a node lets in and talks to: its CA or pinned ids, an allow-list and revoked ids, all of them live."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pfl_node.errors import PflError, Reason, Refused
from pfl_node.security.certificate import Certificate
from pfl_node.security.credentials import Credentials, load_credentials
from pfl_node.security.id_lists import read_ids
from pfl_node.security.tls_files import TlsFiles
from pfl_node.types import PeerId

log = logging.getLogger(__name__)

SOON = timedelta(days=14)  # before a certificate expires its node begins to complain
AGAIN = timedelta(hours=12)  # and does so again

Stamp = tuple[int, int, int]


def now() -> datetime:
    return datetime.now(UTC)


class Trust:
    """What holds at this moment. `refresh` looks for changed files; what cannot be read leaves all as it was."""

    def __init__(self, files: TlsFiles, *, clock: Callable[[], datetime] = now) -> None:
        self.files = files
        self.generation = 0  # grows with every new certificate of my own
        self._clock = clock
        self._stamps: dict[Path, Stamp | None] = {}
        self._complained = datetime.min.replace(tzinfo=UTC)
        self._look()
        self.credentials: Credentials = load_credentials(files)
        self.allow: frozenset[PeerId] | None = self._ids(files.allow, "allow-list")
        self.revoked: frozenset[PeerId] = self._ids(files.revoked, "list of revoked ids") or frozenset()

    @property
    def me(self) -> PeerId:
        return self.credentials.id

    # -- who may -------------------------------------------------------------------------------------------

    def permit(self, peer: PeerId) -> None:
        """Raises Refused for an id that is revoked or not on the list."""
        if peer in self.revoked:
            raise Refused(Reason.REVOKED, f"{peer} is revoked")
        if self.allow is not None and peer not in self.allow and peer != self.me:
            raise Refused(Reason.NOT_ALLOWED, f"{peer} is not on the allow-list")

    def check(self, shown: Certificate) -> None:
        """Raises Refused. That its issuer is one of ours was TLS's business when the connection was made; all
        else may have changed since."""
        if shown.alias:
            raise Refused(Reason.IMPOSTOR, f"the certificate says {shown.alias}, but its key is {shown.id}")
        if shown.expired(self._clock()):
            raise Refused(Reason.EXPIRED, f"the certificate of {shown.id} expired on {_day(shown.not_after)}")
        self.permit(shown.id)

    # -- what changes --------------------------------------------------------------------------------------

    def refresh(self) -> list[str]:
        """What is new, in words. Never raises."""
        self._complain()
        changed = self._look()
        files, news = self.files, []
        if changed & {files.key, files.cert, files.ca} and self._renew():
            news.append("certificate")
        if files.allow in changed and self._reload_allow():
            news.append("allow-list")
        if files.revoked in changed and self._reload_revoked():
            news.append("revoked")
        return news

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
        log.info("new certificate %s", fresh.certificate)
        return True

    def _reload_allow(self) -> bool:
        try:
            ids = self._ids(self.files.allow, "allow-list")
        except PflError as error:
            log.warning("the allow-list stays as it was: %s", error)
            return False
        if ids is None:  # taken away: nobody more is let in than before
            log.warning("the allow-list %s is gone; it stays as it was", self.files.allow)
            return False
        self.allow = ids
        log.info("allow-list: %d ids", len(ids))
        return True

    def _reload_revoked(self) -> bool:
        try:
            ids = self._ids(self.files.revoked, "list of revoked ids")
        except PflError as error:
            log.warning("the list of revoked ids stays as it was: %s", error)
            return False
        if ids is None:
            log.warning("the list of revoked ids %s is gone; it stays as it was", self.files.revoked)
            return False
        self.revoked = ids
        log.info("revoked: %d ids", len(ids))
        return True

    def _ids(self, path: Path, what: str) -> frozenset[PeerId] | None:
        return read_ids(path, what) if path.exists() else None

    def _look(self) -> set[Path | None]:
        files = self.files
        found = {p: _stamp(p) for p in (files.key, files.cert, files.ca, files.allow, files.revoked) if p}
        changed: set[Path | None] = {path for path, stamp in found.items() if stamp != self._stamps.get(path)}
        self._stamps = found
        return changed

    def _complain(self) -> None:
        mine, moment = self.credentials.certificate, self._clock()
        soon = min(SOON, (mine.not_after - mine.not_before) / 4)
        if mine.not_after - moment < soon and moment - self._complained > AGAIN:
            self._complained = moment
            log.warning("this node's certificate expires on %s; have it issued again", _day(mine.not_after))


def _stamp(path: Path) -> Stamp | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _day(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"
