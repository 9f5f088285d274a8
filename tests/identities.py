"""Keys, certificates and CAs for tests, made for real and in a moment."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import NameOID

from pfl_node.security.ca import Authority
from pfl_node.security.tls_files import ALLOW, CERT, KEY, REVOKED, TlsFiles
from pfl_node.security.x509_builder import Key, key_id, load_key, make_certificate, own_key
from pfl_node.types import PeerId
from pfl_node.wire.tls import Tls

LONG_AGO = datetime.now(UTC) - timedelta(days=30)


class Site:
    """A swarm's CA and the directories of its nodes."""

    def __init__(self, path: Path, name: str = "the CA") -> None:
        self.path = path
        self.ca = Authority.create(path / "ca", name, 10)

    def member(self, name: str, *, operator: bool = False) -> TlsFiles:
        self.ca.issue_for(self.path / name, name=name, days=1, operator=operator)
        return TlsFiles.find(self.path / name)

    def tls(self, name: str, *, operator: bool = False) -> Tls:
        return Tls(self.member(name, operator=operator))

    def revoke(self, who: PeerId, *, at: str) -> None:
        with (self.path / at / REVOKED).open("a") as file:
            file.write(f"{who} a thief\n")

    def certify(self, name: str, *, like: PeerId | None = None, start: datetime | None = None) -> bytes:
        """A certificate that the CA signed, wrong in one way: it claims another's id, or it expired."""
        key, signer = load_key(self.path / name / KEY), load_key(self.ca.path / "ca.key")
        if like is None:
            pem = make_certificate(key.public_key(), self.ca.pem, signer, days=1, start=start)
        else:
            pem = _lie(key, like, self.ca.pem, signer)
        (self.path / name / CERT).write_bytes(pem)
        return pem


def _lie(key: Key, like: PeerId, authority: bytes, signer: Key) -> bytes:
    begin = datetime.now(UTC) - timedelta(hours=1)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, like)]))
        .issuer_name(x509.load_pem_x509_certificate(authority).subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(like)]), critical=False)
    )
    return builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def pinned(path: Path, *, allow: list[PeerId]) -> TlsFiles:
    """A node without a CA."""
    path.mkdir(parents=True, exist_ok=True)
    (path / ALLOW).write_text("".join(f"{id}  somebody\n" for id in allow))
    return TlsFiles.find(path)


def fresh_id(path: Path) -> PeerId:
    """The id of the key in a directory, which is made if there is none."""
    return key_id(own_key(path / KEY)[0])
