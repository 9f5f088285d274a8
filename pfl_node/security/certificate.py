"""The fields of an X.509 certificate that nodes use, parsed without a library."""

from __future__ import annotations

import hashlib
import re
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache

from pfl_node.security import der
from pfl_node.types import PeerId

ID_BYTES = 16  # of a SHA-256: finding a second key with the same id is infeasible
ID = re.compile(rf"[0-9a-f]{{{2 * ID_BYTES}}}")
OPERATOR = "operator"  # the DNS name that marks a read-only certificate
ENROLMENT = "enrolment"  # the DNS name by which the CA's own commands identify themselves to a bootstrap
BEGIN, END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"

COMMON_NAME, UNIT = bytes.fromhex("550403"), bytes.fromhex("55040b")
ALT_NAMES = bytes.fromhex("551d11")


def id_of(public_key: bytes) -> PeerId:
    """The id of a public key in DER (SubjectPublicKeyInfo)."""
    return PeerId(hashlib.sha256(public_key).digest()[:ID_BYTES].hex())


@dataclass(frozen=True, slots=True)
class Certificate:
    """The contents only: TLS has verified the signature."""

    id: PeerId  # derived from its key
    subject: str
    name: str  # for humans
    issuer: str
    serial: int
    not_before: datetime
    not_after: datetime
    names: tuple[str, ...]  # DNS names
    whole: bytes  # DER

    @property
    def operator(self) -> bool:
        return OPERATOR in self.names

    @property
    def alias(self) -> str | None:
        """An id in the certificate that is not the id of its key."""
        return next((n for n in (self.subject, *self.names) if ID.fullmatch(n) and n != self.id), None)

    @property
    def fingerprint(self) -> str:
        digest = hashlib.sha256(self.whole).hexdigest()
        return ":".join(digest[i : i + 2] for i in range(0, len(digest), 2))

    @property
    def pem(self) -> bytes:
        return ssl.DER_cert_to_PEM_cert(self.whole).encode()

    def expired(self, now: datetime | None = None) -> bool:
        return self.not_after < (now or datetime.now(UTC))

    @property
    def validity(self) -> str:
        return f"{self.not_before:%Y-%m-%d %H:%M} to {self.not_after:%Y-%m-%d %H:%M} UTC"

    def __str__(self) -> str:
        return f"{self.id} (issued by {self.issuer!r}, valid until {self.not_after:%Y-%m-%d %H:%M} UTC)"


@lru_cache(maxsize=4096)
def read_pem(pem: bytes) -> Certificate:
    """The first certificate of a chain. Raises ValueError."""
    text = pem.decode("ascii", "replace")
    start, end = text.find(BEGIN), text.find(END)
    if start < 0 or end < start:
        raise ValueError("it contains no certificate")
    return read_der(ssl.PEM_cert_to_DER_cert(text[start : end + len(END)] + "\n"))


@lru_cache(maxsize=4096)
def read_der(data: bytes) -> Certificate:
    """Raises ValueError."""
    try:
        return _read(data)
    except (ValueError, IndexError) as error:
        raise ValueError(f"not a certificate ({error})") from error


def _read(data: bytes) -> Certificate:
    outer = der.first(data).children()
    fields = outer[0].children()
    if fields[0].tag == der.VERSION:
        fields = fields[1:]
    serial, _, issuer, validity, subject, public_key, *rest = fields
    not_before, not_after = map(der.time, validity.children())
    issued_by, issued_to = der.names(issuer), der.names(subject)
    return Certificate(
        id=id_of(public_key.whole),
        subject=issued_to.get(COMMON_NAME, ""),
        name=issued_to.get(UNIT, ""),
        issuer=issued_by.get(COMMON_NAME, ""),
        serial=int.from_bytes(serial.content),
        not_before=not_before,
        not_after=not_after,
        names=tuple(_alternative_names(rest)),
        whole=data,
    )


def _alternative_names(rest: list[der.Item]) -> list[str]:
    extensions = next((der.first(item.content) for item in rest if item.tag == der.EXTENSIONS), None)
    for extension in extensions.children() if extensions else ():
        oid, *_, value = extension.children()
        if oid.content == ALT_NAMES:
            names = der.first(value.content).children()
            return [n.content.decode("ascii", "replace") for n in names if n.tag == der.DNS_NAME]
    return []
