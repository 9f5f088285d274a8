"""A swarm's own CA in a directory: its key, what it issued, whom it revoked. No node needs it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from pfl_node.errors import ConfigError
from pfl_node.security.certificate import ID, Certificate, read_pem
from pfl_node.security.id_lists import read_ids
from pfl_node.security.tls_files import CA, CERT, KEY, REVOKED, read, write_private
from pfl_node.security.x509_builder import (
    key_id,
    key_pem,
    load_key,
    make_authority,
    make_certificate,
    new_key,
    own_key,
    read_request,
)
from pfl_node.store.atomic import write_atomic
from pfl_node.types import PeerId

DEFAULT = Path("pfl-ca")
CA_KEY, ISSUED = "ca.key", "issued.jsonl"


@dataclass(frozen=True, slots=True)
class Issued:
    """A line of the CA's book."""

    id: PeerId
    name: str
    operator: bool
    serial: str  # hexadecimal
    issued: str
    expires: str


class Authority:
    """An open CA."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not (path / CA_KEY).exists():
            raise ConfigError(f"there is no CA in {path}: make one with `pfl-node ca init --ca-dir {path}`")
        self._key = load_key(path / CA_KEY)
        self.pem = read(path / CA, "CA certificate")
        self.certificate: Certificate = read_pem(self.pem)

    @classmethod
    def create(cls, path: Path, name: str, days: float) -> Authority:
        if (path / CA_KEY).exists():
            raise ConfigError(f"there is a CA in {path} already; a second one needs another --ca-dir")
        path.mkdir(parents=True, exist_ok=True)
        key = new_key()
        write_private(path / CA_KEY, key_pem(key))
        write_atomic(path / CA, make_authority(key, name, days))
        write_atomic(path / REVOKED, b"# ids that nobody talks to any more; copy this file to every node\n")
        return cls(path)

    def issue_for(self, directory: Path, *, name: str, days: float, operator: bool = False) -> Certificate:
        """Into a data directory on this machine: its key if it has none, its certificate, ours."""
        directory.mkdir(parents=True, exist_ok=True)
        key, _ = own_key(directory / KEY)
        self._not_revoked(key_id(key))
        pem = make_certificate(
            key.public_key(), self.pem, self._key, name=name or directory.name, days=days, operator=operator
        )
        return self._hand_out(pem, directory)

    def issue_on(self, request: Path, out: Path, *, name: str, days: float, operator: bool = False) -> Certificate:
        """For a key that is elsewhere and stays there; what is written into `out` is for its data directory."""
        public, asked = read_request(read(request, "request"), str(request))
        self._not_revoked(key_id(public))
        out.mkdir(parents=True, exist_ok=True)
        pem = make_certificate(public, self.pem, self._key, name=name or asked, days=days, operator=operator)
        return self._hand_out(pem, out)

    def revoke(self, who: str) -> Issued | PeerId:
        """An id, a name of the book or a certificate's file."""
        found = self._find(who)
        id = found.id if isinstance(found, Issued) else found
        if id not in self.revoked():
            name = f"  {found.name}" if isinstance(found, Issued) and found.name else ""
            old = read(self.path / REVOKED, "list of revoked ids") if (self.path / REVOKED).exists() else b""
            write_atomic(self.path / REVOKED, old + f"{id}{name}  # {datetime.now(UTC):%Y-%m-%d}\n".encode())
        return found

    def revoked(self) -> frozenset[PeerId]:
        path = self.path / REVOKED
        return read_ids(path, "list of revoked ids") if path.exists() else frozenset()

    def book(self) -> list[Issued]:
        path = self.path / ISSUED
        return [Issued(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []

    def _hand_out(self, pem: bytes, place: Path) -> Certificate:
        made = read_pem(pem)
        write_atomic(place / CA, self.pem)
        write_atomic(place / CERT, pem)
        if (self.path / REVOKED).exists():
            write_atomic(place / REVOKED, read(self.path / REVOKED, "list of revoked ids"))
        line = Issued(
            made.id,
            made.name,
            made.operator,
            f"{made.serial:x}",
            _minute(datetime.now(UTC)),
            _minute(made.not_after),
        )
        with (self.path / ISSUED).open("a") as book:
            book.write(json.dumps(asdict(line)) + "\n")
        return made

    def _not_revoked(self, id: PeerId) -> None:
        if id in self.revoked():
            raise ConfigError(
                f"{id} is revoked: a key that is not trusted any more gets no certificate; make a new one"
            )

    def _find(self, who: str) -> Issued | PeerId:
        book = self.book()
        if ID.fullmatch(who.lower()):
            return next((line for line in reversed(book) if line.id == who.lower()), PeerId(who.lower()))
        if Path(who).is_file():
            try:
                return self._find(read_pem(Path(who).read_bytes()).id)
            except ValueError as error:
                raise ConfigError(f"{who}: {error}") from error
        ids = {line.id for line in book if line.name == who}
        if len(ids) != 1:
            many = (
                f"{len(ids)} ids have the name {who!r}: give the id" if ids else f"{who!r} is no id, name or file"
            )
            raise ConfigError(f"{many}; `pfl-node ca list` shows what was issued")
        return self._find(ids.pop())


def _minute(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%MZ}"
