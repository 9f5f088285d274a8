"""A swarm's own CA in a directory: its key, the issued certificates, the revoked ids. Nodes do not use it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from pfl_node.errors import ConfigError
from pfl_node.security.certificate import ENROLMENT, ID, Certificate, read_pem
from pfl_node.security.tls_files import CA, CERT, KEY, REVOKED, read, write_private
from pfl_node.security.trust import REVOKED_LIST, read_ids
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

CA_KEY, ISSUED = "ca.key", "issued.jsonl"


@dataclass(frozen=True, slots=True)
class Issued:
    """A record of issued.jsonl."""

    id: PeerId
    name: str
    operator: bool
    serial: str  # hexadecimal
    issued: str
    expires: str


class Authority:
    def __init__(self, path: Path) -> None:
        self.path = path
        if not (path / CA_KEY).exists():
            hint = f"change to its directory or give --ca-dir; `pfl-node ca init --ca-dir {path}` makes a new CA"
            raise ConfigError(f"there is no CA in {path}: {hint}")
        self._key = load_key(path / CA_KEY)
        self.pem = read(path / CA, "CA certificate")
        self.certificate: Certificate = read_pem(self.pem)

    @classmethod
    def create(cls, path: Path, name: str, days: float) -> Authority:
        if (path / CA_KEY).exists():
            raise ConfigError(f"there already is a CA in {path}; use another --ca-dir")
        path.mkdir(parents=True, exist_ok=True)
        key = new_key()
        write_private(path / CA_KEY, key_pem(key))
        write_atomic(path / CA, make_authority(key, name, days))
        write_atomic(path / REVOKED, b"# revoked ids; copy this file to every node\n")
        return cls(path)

    def issue_for(self, directory: Path, *, name: str, days: float, operator: bool = False) -> Certificate:
        """Issue a certificate into a data directory on this machine; creates the key if there is none."""
        directory.mkdir(parents=True, exist_ok=True)
        key, _ = own_key(directory / KEY)
        self._check_not_revoked(key_id(key))
        pem = make_certificate(
            key.public_key(), self.pem, self._key, name=name or directory.name, days=days, operator=operator
        )
        return self._write(pem, directory)

    def issue_on(self, request: Path, out: Path, *, name: str, days: float, operator: bool = False) -> Certificate:
        """Issue a certificate for a request from another machine; copy `out` into the data directory there."""
        pem = self._sign(read(request, "request"), str(request), name=name, days=days, operator=operator)
        out.mkdir(parents=True, exist_ok=True)
        return self._write(pem, out)

    def issue(self, request: bytes, *, name: str, days: float) -> bytes:
        """The certificate of a node, in PEM, for a request in PEM."""
        pem = self._sign(request, f"the request of {name}", name=name, days=days)
        self._record(pem)
        return pem

    def identify(self, directory: Path, *, minutes: float) -> tuple[Path, Path]:
        """A certificate and its key, written to an empty directory, with which this CA's commands identify
        themselves to a bootstrap. It is not recorded: nodes accept it for reading only, and it is soon void."""
        key, cert = directory / KEY, directory / CERT
        owner, _ = own_key(key)
        marks, days = (ENROLMENT,), minutes / (24 * 60)
        pem = make_certificate(owner.public_key(), self.pem, self._key, days=days, operator=True, marks=marks)
        write_private(cert, pem)
        return cert, key

    def revoked_list(self) -> bytes:
        return read(self.path / REVOKED, REVOKED_LIST) if (self.path / REVOKED).exists() else b""

    def revoke(self, who: str) -> Issued | PeerId:
        """`who` is an id, the name in an issued certificate or a certificate file."""
        found = self._find(who)
        id = found.id if isinstance(found, Issued) else found
        if id not in self.revoked():
            name = f"  {found.name}" if isinstance(found, Issued) and found.name else ""
            line = f"{id}{name}  # {datetime.now(UTC):%Y-%m-%d}\n"
            write_atomic(self.path / REVOKED, self.revoked_list() + line.encode())
        return found

    def revoked(self) -> frozenset[PeerId]:
        return read_ids(self.path / REVOKED, REVOKED_LIST) or frozenset()

    def issued(self) -> list[Issued]:
        path = self.path / ISSUED
        return [Issued(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []

    def _sign(self, request: bytes, where: str, *, name: str, days: float, operator: bool = False) -> bytes:
        public, asked = read_request(request, where)
        self._check_not_revoked(key_id(public))
        return make_certificate(public, self.pem, self._key, name=name or asked, days=days, operator=operator)

    def _write(self, pem: bytes, directory: Path) -> Certificate:
        write_atomic(directory / CA, self.pem)
        write_atomic(directory / CERT, pem)
        if (self.path / REVOKED).exists():
            write_atomic(directory / REVOKED, self.revoked_list())
        return self._record(pem)

    def _record(self, pem: bytes) -> Certificate:
        made = read_pem(pem)
        dates = (_minute(datetime.now(UTC)), _minute(made.not_after))
        record = Issued(made.id, made.name, made.operator, f"{made.serial:x}", *dates)
        with (self.path / ISSUED).open("a") as file:
            file.write(json.dumps(asdict(record)) + "\n")
        return made

    def _check_not_revoked(self, id: PeerId) -> None:
        if id in self.revoked():
            raise ConfigError(f"{id} is revoked and gets no new certificate; create a new key")

    def _find(self, who: str) -> Issued | PeerId:
        issued = self.issued()
        if ID.fullmatch(who.lower()):
            return next((line for line in reversed(issued) if line.id == who.lower()), PeerId(who.lower()))
        if Path(who).is_file():
            try:
                return self._find(read_pem(Path(who).read_bytes()).id)
            except ValueError as error:
                raise ConfigError(f"{who}: {error}") from error
        ids = {line.id for line in issued if line.name == who}
        if len(ids) != 1:
            problem = f"{len(ids)} ids have the name {who!r}: give the id"
            if not ids:
                problem = f"{who!r} is not an id, a name or a file"
            raise ConfigError(f"{problem}; `pfl-node ca list` shows what was issued")
        return self._find(ids.pop())


def _minute(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%MZ}"
